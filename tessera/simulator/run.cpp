#include "tessera/simulator/run.h"

#include <algorithm>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/simulator/group_run.h"

namespace tessera::simulator {

using schedule::Kind;

Run::Run(const Scenario& scenario, int replicas, const Options& options)
    : s_(scenario),
      schedule_(scenario.make_schedule()),
      places_(scenario.places()),
      strides_(scenario.strides()),
      replicas_(replicas),
      parts_(replicas == 1 ? 1 : scenario.replicas()),
      members_(replicas / parts_),
      shares_links_(scenario.shares_links(places_)),
      traced_(options.traced),
      programs_(make_rank_programs(scenario, places_, schedule_)),
      network_(shard_groups(), members_, queue_, options.shared_links),
      workers_(programs_.size() * static_cast<std::size_t>(replicas)),
      groups_(programs_.size() * static_cast<std::size_t>(parts_ + 1)),
      waiting_(workers_.size() * static_cast<std::size_t>(schedule_.chunks) * 2, 0),
      slow_(slowness(scenario)) {
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    workers_[w].p = static_cast<int>(w) / replicas_;
  }
  for (const RankProgram& program : programs_) {
    auto& loads = loads_.emplace_back();
    for (const RankProgram::OfChunk& each : program.chunks) {
      Loads& own = loads.emplace_back();
      if (each.gather.count > 0) own.gather = load_of(each.gather.each(0).cost, s_.topology);
      for (const planner::Transfers::Each& size : each.reduce.sizes) {
        own.reduce.push_back(load_of(size.cost, s_.topology));
        own.across.push_back(load_of(size.across, s_.topology));
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
  // A trace needs the events of all replicas in the order of time.
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
                    " waits forever at action ", worker.op));
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
    result.utilization = mean.compute / result.step;
    result.bubble = mean.bubble / result.step;
  }
  result.spans = std::move(spans_);
  return result;
}

// The first and the last pipeline rank sum the gradients of the tied parameter. The transfer is
// short and at the end, so contention with other flows is not simulated.
void Run::sum_tied() {
  const int last = stages() - 1;
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
    const RankProgram& mine = program(workers_[w]);
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
             event.time - worker.piece_seconds - worker.debt.total(), event.time);
      worker.debt = {s_.interference * (group(event.id).running_until(event.time) - worker.beside),
                     s_.replica_interference *
                         (sums(worker.p).running_until(event.time) - worker.sums_beside)};
      if (++worker.piece == op.pieces) {
        worker.piece = 0;
        if (op.blocking) {
          for (int i = 0; i < op.reduces; ++i) {
            announce(event.id, event.time, op.chunk, false, i, event.time);
          }
          worker.wait_for = worker.announced;
          if (s_.replicas() > 1) worker.wait_for_sums = worker.reductions;
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
        const int own = static_cast<int>(event.id / 2);
        const int g = event.id % 2 == 0 ? own : shard_groups() + own / parts_;
        Group& group = groups_[static_cast<std::size_t>(g)];
        if (--group.underway > 0) break;
        const double latency =
            load(g, group.collectives[static_cast<std::size_t>(group.done)]).latency;
        if (latency > 0) {
          queue_.push(event.time + latency, Event::finished, static_cast<std::uint32_t>(g));
        } else {
          end_collective(g, event.time);
        }
      }
      break;
    case Event::finished: end_collective(static_cast<int>(event.id), event.time); break;
  }
}

// Continues with the current operation until the worker computes, must wait, or is done.
void Run::advance(std::uint32_t w, double now) {
  Worker& worker = workers_[w];
  const RankProgram& mine = program(worker);
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
  const double end = now + worker.debt.total();
  for (const Op& op : mine.ops) {
    for (int i = 0; i < op.late_reduces; ++i) announce(w, end, op.chunk, false, i, now);
  }
  charge(worker, worker.debt);
  worker.wait_for = worker.announced;
  if (s_.replicas() > 1) worker.wait_for_sums = worker.reductions;
  worker.state = State::finishing;
  begin_wait(w, end);
  if (collectives_done(worker, group(w))) finish(w, end);
}

bool Run::begin_piece(std::uint32_t w, const Op& op, double now) {
  Worker& worker = workers_[w];
  Group& mine = group(w);
  if (op.gathers) {
    ask_gathers(w, worker.gathers_used + 1, now);
    worker.wait_for =
        std::max(worker.wait_for, mine.gathers[static_cast<std::size_t>(worker.gathers_used)] + 1);
  }
  if (!collectives_done(worker, mine)) {
    worker.state = State::gathering;
    begin_wait(w, now);
    return false;
  }
  if (op.gathers) {
    ++worker.gathers_used;
    ask_gathers(w, worker.gathers_used + s_.prefetch(), now);
  }
  if (worker.piece == 0) begin_op(worker, w, op);
  worker.beside = mine.running_until(now);
  worker.sums_beside = sums(worker.p).running_until(now);
  charge(worker, worker.debt);
  if (op.reduces > 0 && !op.blocking) announce_reduces(w, op, now);
  queue_.push(now + worker.piece_seconds + worker.debt.total(), Event::computed, w);
  return true;
}

// Computes the duration of this operation on this worker. Its neighbors wait for the slowest.
void Run::begin_op(Worker& worker, std::uint32_t w, const Op& op) {
  const Pace pace = pace_of(s_, slow_, strides_.rank(worker.p, static_cast<int>(w) % replicas_),
                            strides_, worker.computed++);
  worker.piece_seconds = charge_op(worker.time, s_, op, pace) / op.pieces;
}

// Announces the reductions that become ready in the current piece.
void Run::announce_reduces(std::uint32_t w, const Op& op, double now) {
  Worker& worker = workers_[w];
  const double piece_seconds = worker.piece_seconds + worker.debt.total();
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
  int& count = waiting_[channel(w, op.chunk, op.kind == Kind::receive_gradient)];
  if (count > 0) {
    --count;
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
  // Before the message was sent the worker waited for the other stage, and then for the network.
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
  Group& mine = group(w);
  const int number = worker.announced++;
  if (number == static_cast<int>(mine.collectives.size())) {
    mine.collectives.push_back({members_, 0, chunk, gather, which, worker.reductions});
    if (gather) mine.gathers.push_back(number);
  }
  if (!gather) ++worker.reductions;
  Collective& collective = mine.collectives[static_cast<std::size_t>(number)];
  collective.ready = std::max(collective.ready, ready);
  horizon_ = std::min(horizon_, ready);
  --collective.missing;
  const RankProgram::OfChunk& of_chunk = program(worker).chunks[static_cast<std::size_t>(chunk)];
  const planner::Transfers& transfers = gather ? of_chunk.gather : of_chunk.reduce;
  const planner::Transfers::Each& each = transfers.each(which);
  add_sent(worker.time.sent, s_, transfers.kind, each.bytes, each.expert_bytes);
  if (number == mine.done) plan_collective(static_cast<int>(w) / members_, now);
}

// Queues the beginning of a group's next collective, if all members have requested it and the links
// that it shares with all-reduces over replicas are free.
void Run::plan_collective(int g, double now) {
  Group& mine = groups_[static_cast<std::size_t>(g)];
  const auto next = static_cast<std::size_t>(mine.done);
  if (mine.busy || next >= mine.collectives.size()) return;
  const Collective& collective = mine.collectives[next];
  if (collective.missing > 0) return;
  if (shares_links_ && !sums_up(g) && sums(stage_of_group(g)).done < collective.sums) return;
  mine.busy = true;
  queue_.push(std::max(now, collective.ready), Event::ready, static_cast<std::uint32_t>(g));
}

const Load& Run::load(int g, const Collective& collective) const {
  const auto p = static_cast<std::size_t>(stage_of_group(g));
  const auto c = static_cast<std::size_t>(collective.chunk);
  const Loads& loads = loads_[p][c];
  if (collective.gather) return loads.gather;
  const std::size_t size = programs_[p].chunks[c].reduce.size_of(collective.which);
  return sums_up(g) ? loads.across[size] : loads.reduce[size];
}

void Run::begin_collective(int g, double now) {
  Group& mine = groups_[static_cast<std::size_t>(g)];
  mine.began = now;
  mine.running = true;
  const Load& takes = load(g, mine.collectives[static_cast<std::size_t>(mine.done)]);
  const bool across = sums_up(g);
  const int first = across ? stage_of_group(g) * parts_ : g;
  mine.underway = across ? parts_ : 1;
  for (int i = 0; i < mine.underway; ++i) {
    network_.start_collective(now, Network::slot(first + i, across), takes);
  }
}

// Called when a group has reduced a bucket. When all have, its sums are all-reduced over replicas.
void Run::ask_sums(int p, const Collective& reduction, double now) {
  Group& all = sums(p);
  const auto number = static_cast<std::size_t>(reduction.sums);
  if (number == all.collectives.size()) {
    all.collectives.push_back({parts_, 0, reduction.chunk, false, reduction.which, 0});
  }
  Collective& collective = all.collectives[number];
  collective.ready = now;
  --collective.missing;
  plan_collective(shard_groups() + p, now);
}

void Run::end_collective(int g, double now) {
  Group& mine = groups_[static_cast<std::size_t>(g)];
  Collective& done = mine.collectives[static_cast<std::size_t>(mine.done)];
  done.began = mine.began;
  done.ended = now;
  const bool across = sums_up(g);
  const int p = stage_of_group(g);
  ++mine.done;
  mine.busy = mine.running = false;
  mine.ran += now - mine.began;
  if (!across && !done.gather && s_.replicas() > 1) ask_sums(p, done, now);
  plan_collective(g, now);
  if (across && shares_links_) {
    for (int i = 0; i < parts_; ++i) plan_collective(p * parts_ + i, now);
  }
  const char* what = across        ? "all-reduce gradients over replicas"
                     : done.gather ? "gather parameters"
                     : s_.zero > 0 ? "reduce-scatter gradients"
                                   : "all-reduce gradients";
  const int first = across ? p * replicas_ : g * members_;
  for (int d = 0; d < (across ? replicas_ : members_); ++d) {
    const auto w = static_cast<std::uint32_t>(first + d);
    record(w, across ? Span::over_replicas : Span::data_parallel, what, -1, -1, mine.began, now);
    wake(w, now);
  }
}

double Run::Group::ran_between(double from, double until) const {
  double seconds = 0;
  for (int i = done; i-- > 0;) {
    const Collective& each = collectives[static_cast<std::size_t>(i)];
    if (each.ended <= from) break;
    seconds += std::max(0.0, std::min(until, each.ended) - std::max(from, each.began));
  }
  return seconds;
}

// Continues with a worker if its wait is over.
void Run::wake(std::uint32_t w, double now) {
  Worker& worker = workers_[w];
  if (worker.state != State::gathering && worker.state != State::finishing) return;
  const Group& mine = group(w);
  if (mine.done >= worker.wait_for && worker.shards_done < 0) worker.shards_done = now;
  if (!collectives_done(worker, mine)) return;
  const double end = std::max(now, worker.since);
  charge(worker, planner::split_wait(shares_links_, worker.since, end, worker.shards_done,
                                     sums(worker.p).ran_between(worker.since, end)));
  if (worker.state == State::gathering) {
    advance(w, now);
  } else {
    finish(w, end);
  }
}

void Run::begin_wait(std::uint32_t w, double now) {
  Worker& worker = workers_[w];
  worker.since = now;
  worker.shards_done = group(w).done >= worker.wait_for ? now : -1;
}

void Run::finish(std::uint32_t w, double now) {
  Worker& worker = workers_[w];
  worker.state = State::done;
  worker.since = now;
}

Result simulate(const planner::RunConfig& resolved, const Options& options) {
  return simulate(scenario_of(resolved), options);
}

Result simulate(const Scenario& scenario, const Options& options) {
  check(scenario);
  const bool one = !options.full && scenario.symmetric();
  const int replicas = one ? 1 : static_cast<int>(scenario.axes.ranks(kDataAxes));
  if (!scenario.pipelined() && options.traced == 0 && !options.by_events) {
    return run_group(scenario, replicas);
  }
  return Run(scenario, replicas, options).result();
}

}  // namespace tessera::simulator
