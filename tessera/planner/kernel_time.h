#pragma once

#include "tessera/planner/hardware.h"

namespace tessera::planner {

// [Note: kernels] A product of m×k by k×n is cut into tiles of the result, one for a unit of the
// device at a time. So it takes whole waves of tiles, however full the last one is, and a few
// columns of k more to fill each unit's pipeline; small tiles fill waves better and units worse,
// and libraries take the best. It cannot be faster than its operands move. Elementwise kernels just
// move bytes.

// The device's seconds for `batch` products of m×k by k×n, of elements of `element` bytes.
double product_time(const Hardware& hardware, int element, double m, double n, double k,
                    double batch = 1);
// Of one pass over so many bytes, read and written together.
double pass_time(const Hardware& hardware, double bytes);
// Of fused attention that does so many operations.
double fused_attention_time(const Hardware& hardware, int element, double flops);

// What a part of a step gives a device to do, and its host to launch.
struct Work {
  double device = 0;    // seconds
  double launches = 0;  // kernels and collectives
  double flops = 0;     // of its products, attention's among them

  Work& operator+=(const Work& other) {
    device += other.device, launches += other.launches, flops += other.flops;
    return *this;
  }
  friend Work operator+(Work a, const Work& b) { return a += b; }
  friend Work operator*(Work a, double times) {
    return {a.device * times, a.launches * times, a.flops * times};
  }
};

// [Note: host and device] The host launches ahead while the device works, so the longer of the two
// counts; but neither is always busy, and where they are nearly equal the sum is longer than both:
// a power mean, whose exponent was set from measured steps.
double elapsed(const Hardware& hardware, const Work& work);

}  // namespace tessera::planner
