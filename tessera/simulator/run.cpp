#include "tessera/simulator/run.h"

#include <algorithm>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/simulator/group_run.h"
#include "tessera/simulator/pace.h"

namespace tessera::simulator {

using schedule::Kind;

Run::Run(const Scenario& scenario, int replicas, const Options& options)
    : s_(scenario),
      schedule_(scenario.make_schedule()),
      places_(scenario.places()),
      strides_(scenario.strides()),
      replicas_(replicas),
      traced_(options.traced),
      programs_(make_programs(scenario, places_, schedule_)),
      network_(scenario.pp(), replicas, queue_, options.shared_links),
      workers_(static_cast<std::size_t>(scenario.pp()) * static_cast<std::size_t>(replicas)),
      groups_(static_cast<std::size_t>(scenario.pp())),
      waiting_(workers_.size() * static_cast<std::size_t>(schedule_.chunks) * 2, 0),
      slow_(slowness(scenario)) {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    workers_[w].p = static_cast<int>(w) / replicas_;
  }
  for (const Program& program : programs_) {
    auto& loads = loads_.emplace_back();
    for (const Program::OfChunk& each : program.chunks) {
      Loads& own = loads.emplace_back();
      if (each.gather.count > 0) own.gather = load_of(each.gather.each(0).cost, s_.topology);
      for (const planner::Transfers::Each& size : each.reduce.sizes) {
        own.reduce.push_back(load_of(size.cost, s_.topology));
      }
    }
  }
  for (const Level level : {kInside, kBetween}) {
    Load& hop = hop_[level];
    if (s_.hop_bytes > 0) {
      const planner::GroupPlace near{2, 2, 1, 1};
      hop = load_of(collective_cost(s_.topology, planner::Collective::send, s_.hop_bytes,
                                    level == kInside ? near : places_.hop),
                    s_.topology);
    }
    hop.latency += s_.hop_latency;
  }
}

Result Run::result() {
  start();
  // A trace has the events of all replicas in the order of time.
  bool together = replicas_ == 1 || traced_ > 0;
  while (!queue_.empty()) {
    if (!together && between_collectives()) {
      play_replicas();
      together = true;
    }
    handle(queue_.pop());
  }
  for (const Worker& worker : workers_) {
    if (worker.state == State::done) continue;
    throw Error(str("schedule ", s_.schedule, ": pipeline rank ", worker.p,
                    " waits for ever at action ", worker.op));
  }
  sum_tied();
  double end = 0;
  for (const Worker& worker : workers_) end = std::max(end, worker.since);
  Result result;
  result.replicas = replicas_;
  result.events = queue_.count();
  result.step = end + s_.optimizer;
  RankTime& mean = result.mean;
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    RankTime time = workers_[w].time;
    time.bubble += end - workers_[w].since;
    time.optimizer = s_.optimizer;
    if (s_.optimizer > 0) {
      record(w, Span::computing, "optimizer", -1, -1, end, result.step);
    }
    mean.add(time, 1.0 / static_cast<double>(workers_.size()));
    result.ranks.push_back(time);
  }
  if (result.step > 0) {
    result.utilisation = mean.compute / result.step;
    result.bubble = mean.bubble / result.step;
  }
  result.spans = std::move(spans_);
  return result;
}

// The first and the last pipeline rank add up the gradients of the parameter they both hold. Its
// transfer is short and at the end: it is not laid over others.
void Run::sum_tied() {
  const int last = s_.pp() - 1;
  if (s_.tied_bytes <= 0 || last == 0) return;
  for (int d = 0; d < replicas_; ++d) {
    const auto a = static_cast<std::uint32_t>(d);
    const auto b = static_cast<std::uint32_t>(last * replicas_ + d);
    const bool same_node = s_.node(strides_.rank(0, d)) == s_.node(strides_.rank(last, d));
    const double begin = std::max(workers_[a].since, workers_[b].since);
    const double end =
        begin + places_.seconds(planner::Collective::all_reduce, s_.tied_bytes,
                                same_node ? planner::GroupPlace{2, 2, 1, 1} : places_.tied);
    for (const std::uint32_t w : {a, b}) {
      Worker& worker = workers_[w];
      worker.time.bubble += begin - worker.since;
      worker.time.comm[Axis::pp] += end - begin;
      worker.time.sent[Axis::pp] += s_.tied_bytes;
      worker.since = end;
      record(w, Span::pipeline, "tied gradient", -1, -1, begin, end);
    }
  }
}

void Run::start() {
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    const Program& mine = program(workers_[w]);
    ask_gathers(w, mine.start.gathers, 0);
    if (mine.start.wait) workers_[w].wait_for = workers_[w].announced;
  }
  for (std::uint32_t w = 0; w < workers_.size(); ++w) advance(w, 0);
}

bool Run::between_collectives() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const Group& group) {
    return group.done == static_cast<int>(group.collectives.size());
  });
}

int Run::replica_of(const Event& event) const {
  const bool message = event.type() == Event::transferred || event.type() == Event::arrived;
  return static_cast<int>(message ? messages_[event.id].to : event.id) % replicas_;
}

void Run::play_replicas() {
  std::vector<std::vector<Event>> waiting(static_cast<std::size_t>(replicas_));
  while (!queue_.empty()) {
    const Event event = queue_.pop();
    waiting[static_cast<std::size_t>(replica_of(event))].push_back(event);
  }
  std::vector<Event> left;
  for (const std::vector<Event>& events : waiting) {
    horizon_ = std::numeric_limits<double>::infinity();
    for (const Event& event : events) queue_.put_back(event);
    while (!queue_.empty() && queue_.next() < horizon_) handle(queue_.pop());
    while (!queue_.empty()) left.push_back(queue_.pop());
  }
  for (const Event& event : left) queue_.put_back(event);
}

void Run::handle(const Event& event) {
  switch (event.type()) {
    case Event::computed: {
      Worker& worker = workers_[event.id];
      const Op& op = program(worker).ops[worker.op];
      record(event.id, Span::computing, name(op.kind), op.micro, op.chunk,
             event.time - worker.piece_seconds - worker.debt, event.time);
      worker.debt = s_.interference * (group(worker).running_until(event.time) - worker.beside);
      if (++worker.piece == op.pieces) {
        worker.piece = 0;
        if (op.blocking) {
          for (int i = 0; i < op.reduces; ++i) {
            announce(event.id, event.time, op.chunk, false, i, event.time);
          }
          worker.wait_for = worker.announced;
        }
        ++worker.op;
      }
      advance(event.id, event.time);
      break;
    }
    case Event::transferred:
      if (network_.transferred(event.time, event)) {
        const double latency = messages_[event.id].latency;
        if (latency > 0) {
          queue_.push(event.time + latency, Event::arrived, event.id);
        } else {
          arrived(event.id, event.time);
        }
      }
      break;
    case Event::arrived: arrived(event.id, event.time); break;
    case Event::ready: begin_collective(static_cast<int>(event.id), event.time); break;
    case Event::reduced:
      if (network_.reduced(event.time, event)) {
        const Group& group = groups_[event.id];
        const double latency = load(static_cast<int>(event.id),
                                    group.collectives[static_cast<std::size_t>(group.done)])
                                   .latency;
        if (latency > 0) {
          queue_.push(event.time + latency, Event::finished, event.id);
        } else {
          end_collective(static_cast<int>(event.id), event.time);
        }
      }
      break;
    case Event::finished: end_collective(static_cast<int>(event.id), event.time); break;
  }
}

// Goes on from the present operation until the worker is busy, must wait, or is through.
void Run::advance(std::uint32_t w, double now) {
  Worker& worker = workers_[w];
  const Program& mine = program(worker);
  worker.state = State::moving;
  while (worker.op < mine.ops.size()) {
    const Op& op = mine.ops[worker.op];
    if (is_compute(op.kind)) {
      begin_piece(w, op, now);
      return;
    }
    if (op.kind == Kind::send_activation || op.kind == Kind::send_gradient) {
      send(w, op, now);
    } else if (!receive(w, op, now)) {
      return;
    }
    ++worker.op;
  }
  const double through = now + worker.debt;
  for (const Op& op : mine.ops) {
    for (int i = 0; i < op.late_reduces; ++i) announce(w, through, op.chunk, false, i, now);
  }
  worker.since = through;
  worker.time.comm[Axis::dp_shard] += worker.debt;
  worker.state = State::finishing;
  if (group(worker).done >= worker.announced) finish(w, through);
}

bool Run::begin_piece(std::uint32_t w, const Op& op, double now) {
  Worker& worker = workers_[w];
  Group& mine = group(worker);
  if (op.gathers) {
    ask_gathers(w, worker.gathers_used + 1, now);
    worker.wait_for =
        std::max(worker.wait_for, mine.gathers[static_cast<std::size_t>(worker.gathers_used)] + 1);
  }
  if (mine.done < worker.wait_for) {
    worker.state = State::gathering;
    worker.since = now;
    return false;
  }
  if (op.gathers) {
    ++worker.gathers_used;
    ask_gathers(w, worker.gathers_used + s_.prefetch(), now);
  }
  if (worker.piece == 0) begin_op(worker, w, op);
  worker.beside = mine.running_until(now);
  worker.time.comm[Axis::dp_shard] += worker.debt;
  if (op.reduces > 0 && !op.blocking) announce_reduces(w, op, now);
  queue_.push(now + worker.piece_seconds + worker.debt, Event::computed, w);
  return true;
}

// How long this operation takes on this worker. The tp neighbours wait for their slowest.
void Run::begin_op(Worker& worker, std::uint32_t w, const Op& op) {
  const Pace pace = pace_of(s_, slow_, strides_.rank(worker.p, static_cast<int>(w) % replicas_),
                            strides_.of[Axis::tp], worker.computed++);
  const double seconds = op.work * pace.slowest + op.tp;
  worker.time.compute += op.work * pace.mean;
  worker.time.comm[Axis::tp] += op.work * (pace.slowest - pace.mean) + op.tp;
  worker.piece_seconds = seconds / op.pieces;
}

// Those that are ready in the present piece.
void Run::announce_reduces(std::uint32_t w, const Op& op, double now) {
  Worker& worker = workers_[w];
  const double piece_seconds = worker.piece_seconds + worker.debt;
  const planner::Transfers& reduces =
      program(worker).chunks[static_cast<std::size_t>(op.chunk)].reduce;
  if (worker.piece == 0) worker.reduced = 0;
  for (; worker.reduced < op.reduces; ++worker.reduced) {
    const double part =
        planner::part_of_piece(reduces.ready(worker.reduced), worker.piece, op.pieces);
    if (part > 1) break;
    announce(w, now + piece_seconds * part, op.chunk, false, worker.reduced, now);
  }
}

bool Run::receive(std::uint32_t w, const Op& op, double now) {
  int& there = waiting_[channel(w, op.chunk, op.kind == Kind::receive_gradient)];
  if (there > 0) {
    --there;
    return true;
  }
  workers_[w].state = State::receiving;
  workers_[w].since = now;
  return false;
}

void Run::send(std::uint32_t w, const Op& op, double now) {
  Worker& worker = workers_[w];
  const int d = static_cast<int>(w) % replicas_;
  const int to = op.peer * replicas_ + d;
  const bool same_node = s_.node(strides_.rank(worker.p, d)) == s_.node(strides_.rank(op.peer, d));
  const Level level = same_node ? kInside : kBetween;
  const Load& load = hop_[level];
  const std::uint32_t flow =
      network_.send(now, static_cast<int>(w), to, level, load.seconds[level]);
  if (messages_.size() <= flow) messages_.resize(flow + 1);
  Message& message = messages_[flow];
  message.to = static_cast<std::uint32_t>(to);
  message.channel = static_cast<std::uint32_t>(
      channel(message.to, op.peer_chunk, op.kind == Kind::send_gradient));
  message.sent = now;
  message.latency = load.latency;
  worker.time.sent[Axis::pp] += s_.hop_bytes;
}

void Run::arrived(std::uint32_t flow, double now) {
  const Message message = messages_[flow];
  network_.release(flow);
  ++waiting_[message.channel];
  const bool gradient = message.channel % 2 == 1;
  if (s_.hop_bytes > 0 || now > message.sent) {
    record(message.to, Span::pipeline, gradient ? "gradient" : "activation", -1, -1, message.sent,
           now);
  }
  Worker& worker = workers_[message.to];
  if (worker.state != State::receiving) return;
  const Op& op = program(worker).ops[worker.op];
  if (channel(message.to, op.chunk, op.kind == Kind::receive_gradient) != message.channel) return;
  // Until it was sent the worker waited for the other stage, and from then on for the network.
  const double sent = std::max(worker.since, message.sent);
  worker.time.bubble += sent - worker.since;
  worker.time.comm[Axis::pp] += now - sent;
  advance(message.to, now);
}

void Run::ask_gathers(std::uint32_t w, int upto, double now) {
  Worker& worker = workers_[w];
  const auto& chunks = program(worker).gathers;
  const int most = std::min(upto, static_cast<int>(chunks.size()));
  while (worker.gathers_asked < most) {
    const int chunk = chunks[static_cast<std::size_t>(worker.gathers_asked++)];
    announce(w, now, chunk, true, 0, now);
  }
}

void Run::announce(std::uint32_t w, double ready, int chunk, bool gather, int which, double now) {
  Worker& worker = workers_[w];
  Group& mine = group(worker);
  const int number = worker.announced++;
  if (number == static_cast<int>(mine.collectives.size())) {
    mine.collectives.push_back({replicas_, 0, chunk, gather, which});
    if (gather) mine.gathers.push_back(number);
  }
  Collective& collective = mine.collectives[static_cast<std::size_t>(number)];
  collective.ready = std::max(collective.ready, ready);
  horizon_ = std::min(horizon_, ready);
  --collective.missing;
  const Program::OfChunk& of_chunk = program(worker).chunks[static_cast<std::size_t>(chunk)];
  const planner::Transfers& transfers = gather ? of_chunk.gather : of_chunk.reduce;
  worker.time.sent[Axis::dp_shard] +=
      sent_bytes(transfers.kind, transfers.each(which).bytes, s_.dp());
  if (collective.missing == 0 && number == mine.done && !mine.busy) {
    plan_collective(worker.p, now);
  }
}

void Run::plan_collective(int p, double now) {
  Group& mine = groups_[static_cast<std::size_t>(p)];
  mine.busy = true;
  const double ready = mine.collectives[static_cast<std::size_t>(mine.done)].ready;
  queue_.push(std::max(now, ready), Event::ready, static_cast<std::uint32_t>(p));
}

const Load& Run::load(int p, const Collective& collective) const {
  const Loads& loads =
      loads_[static_cast<std::size_t>(p)][static_cast<std::size_t>(collective.chunk)];
  if (collective.gather) return loads.gather;
  const Program::OfChunk& of_chunk =
      programs_[static_cast<std::size_t>(p)].chunks[static_cast<std::size_t>(collective.chunk)];
  return loads.reduce[of_chunk.reduce.size_of(collective.which)];
}

void Run::begin_collective(int p, double now) {
  Group& mine = groups_[static_cast<std::size_t>(p)];
  mine.began = now;
  mine.running = true;
  network_.start_collective(now, p, load(p, mine.collectives[static_cast<std::size_t>(mine.done)]));
}

void Run::end_collective(int p, double now) {
  Group& mine = groups_[static_cast<std::size_t>(p)];
  const Collective done = mine.collectives[static_cast<std::size_t>(mine.done)];
  ++mine.done;
  mine.busy = mine.running = false;
  mine.ran += now - mine.began;
  const auto next = static_cast<std::size_t>(mine.done);
  if (next < mine.collectives.size() && mine.collectives[next].missing == 0) {
    plan_collective(p, now);
  }
  const char* what = done.gather   ? "gather parameters"
                     : s_.zero > 0 ? "reduce-scatter gradients"
                                   : "all-reduce gradients";
  for (int d = 0; d < replicas_; ++d) {
    const auto w = static_cast<std::uint32_t>(p * replicas_ + d);
    record(w, Span::data_parallel, what, -1, -1, mine.began, now);
    Worker& worker = workers_[w];
    if (worker.state == State::gathering && mine.done >= worker.wait_for) {
      worker.time.comm[Axis::dp_shard] += now - worker.since;
      advance(w, now);
    } else if (worker.state == State::finishing && mine.done >= worker.announced) {
      const double end = std::max(now, worker.since);
      worker.time.comm[Axis::dp_shard] += end - worker.since;
      finish(w, end);
    }
  }
}

void Run::finish(std::uint32_t w, double now) {
  Worker& worker = workers_[w];
  worker.state = State::done;
  worker.since = now;
}

Result simulate(const Scenario& scenario, const Options& options) {
  check(scenario);
  const bool one = !options.full && scenario.symmetric();
  const int replicas = one ? 1 : scenario.dp();
  if (scenario.pp() == 1 && options.traced == 0 && !options.by_events) {
    return run_group(scenario, replicas);
  }
  return Run(scenario, replicas, options).result();
}

}  // namespace tessera::simulator
