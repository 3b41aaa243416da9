#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::dashboard {

// [Note: who answers] As many threads answer as there are cores, and one that begins while another
// ends: with a thread for each client all of them would get the processor in slices, and some
// answers would take many times as long as others. A thread that has to wait (for its turn at
// a long calculation, for news of a run, until a listener has received them) steps aside, and
// another one takes its place. No thread waits for a request or for a slow client of an answer:
// [Note: the server].
class Crew {
 public:
  // `work` is one piece of it, called by several threads at once; false ends all of them.
  Crew(int at_work, int most, std::function<bool()> work);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void begin();
  // Waits for those that are at work to finish their piece.
  void end();

  // Held by a thread of the crew while it waits.
  class Aside {
   public:
    explicit Aside(Crew& crew) : crew_(crew) { crew_.step_aside(); }
    ~Aside() { crew_.come_back(); }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    Crew& crew_;
  };

 private:
  void live();
  void fill_places();
  void step_aside();
  void come_back();

  const int at_work_, most_;
  const std::function<bool()> work_;
  std::mutex mutex_;
  std::condition_variable free_;  // there is a place, or it is over
  int working_ = 0;               // more than at_work_ for a while when some come back
  int spare_ = 0;                 // wait for a place
  bool over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tessera::dashboard
