#include "tessera/core/philox.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

namespace tessera {
namespace {

// [Note: normals] Philox::normals computes in double and rounds to float. Here many pairs at a time
// go through branch-free loops that compilers vectorize. Logarithm, sine and cosine are polynomials
// with an error of a few units in the last place of a double. That changes the float only if the
// double lies within that distance of the midpoint of two floats. Such pairs, about one in a
// million, are recomputed by Philox::normals. So the values are the same on all processors with the
// same libm, regardless of their instruction set.
constexpr std::size_t kLanes = 64;
using Doubles = std::array<double, kLanes>;
using Words = std::array<std::uint32_t, kLanes>;

// A double has 29 more bits than a float.
constexpr std::uint64_t kDropped = std::uint64_t{1} << 29;
// Units in the last place of a double. Far larger than the error of the polynomials.
constexpr std::uint64_t kMargin = 256;
// Fewer numbers than this are faster to compute one by one than as part of a block.
constexpr std::uint64_t kFew = 40;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TESSERA_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TESSERA_VECTOR_CLONES
#endif

// Words 0 and 1 of the blocks begin, begin + 1, …
TESSERA_VECTOR_CLONES
void philox_words(std::uint64_t begin, std::uint64_t seed, std::uint64_t stream, Words& first,
                  Words& second) {
  Words c0, c1, c2, c3;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::uint64_t counter = begin + i;
    c0[i] = static_cast<std::uint32_t>(counter);
    c1[i] = static_cast<std::uint32_t>(counter >> 32);
    c2[i] = static_cast<std::uint32_t>(stream);
    c3[i] = static_cast<std::uint32_t>(stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < philox::rounds; ++round) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t a = std::uint64_t{philox::multiplier[0]} * c0[i];
      const std::uint64_t b = std::uint64_t{philox::multiplier[1]} * c2[i];
      c0[i] = static_cast<std::uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<std::uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<std::uint32_t>(b);
      c3[i] = static_cast<std::uint32_t>(a);
    }
    k0 += philox::weyl[0];
    k1 += philox::weyl[1];
  }
  first = c0;
  second = c1;
}

// sqrt(-2 ln x) of x = (word + 0.5) · 2^-32. With x = 2^e · m, m in [√½, √2): ln m = 2 artanh(s),
// s = (m - 1) / (m + 1), by its series; |s| < 0.172, so s^24 ends below 1e-18.
TESSERA_VECTOR_CLONES
void radii(const Words& words, Doubles& out) {
  constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double x = (words[i] + 0.5) * 0x1p-32;
    const auto bits = std::bit_cast<std::uint64_t>(x);
    // Adding the distance from √½ to 1 carries into the exponent if m would be at least √2.
    const std::uint64_t shifted = bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    const std::uint64_t biased = shifted >> 52;
    const double e = std::bit_cast<double>(0x4330000000000000u | biased) - (0x1p52 + 1023);
    const double m = std::bit_cast<double>((shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
    const double f = m - 1, s = f / (m + 1), z = s * s;
    double sum = 2.0 / 23;
    sum = sum * z + 2.0 / 21;
    sum = sum * z + 2.0 / 19;
    sum = sum * z + 2.0 / 17;
    sum = sum * z + 2.0 / 15;
    sum = sum * z + 2.0 / 13;
    sum = sum * z + 2.0 / 11;
    sum = sum * z + 2.0 / 9;
    sum = sum * z + 2.0 / 7;
    sum = sum * z + 2.0 / 5;
    sum = sum * z + 2.0 / 3;
    // ln m = 2s + s·z·sum, where 2s = f - s·f keeps the digits of an m near 1.
    const double ln = e * ln2_high + (f - (s * (f - z * sum) - e * ln2_low));
    out[i] = std::sqrt(-2.0 * ln);
  }
}

// Cosine and sine of 2π (word + 0.5) · 2^-32, rounded as Philox::normals rounds it.
TESSERA_VECTOR_CLONES
void cosines_and_sines(const Words& words, Doubles& cosines, Doubles& sines) {
  constexpr double pi = 3.14159265358979323846;
  constexpr double half_pi_high = 1.57079632673412561417e+00;  // 33 bits
  constexpr double half_pi_low = 6.07710050650619224932e-11;
  constexpr double shift = 0x1.8p52;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double angle = 2.0 * pi * ((words[i] + 0.5) * 0x1p-32);
    const double moved = angle * (2.0 / pi) + shift;  // its last bits are the quadrant
    const double quadrant = moved - shift;
    const std::uint64_t q = std::bit_cast<std::uint64_t>(moved);
    const double r = (angle - quadrant * half_pi_high) - quadrant * half_pi_low, z = r * r;
    double c = -1.0 / 6402373705728000;  // 18!
    c = c * z + 1.0 / 20922789888000;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 1.0 / 2;
    const double cosine = c * z + 1;
    double s = 1.0 / 355687428096000;  // 17!
    s = s * z - 1.0 / 1307674368000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    const double sine = s * z * r + r;
    // Odd quadrants swap the two; the cosine is negative in 1 and 2, the sine in 2 and 3.
    const std::uint64_t odd = ~((q & 1) - 1);
    const auto cosine_bits = std::bit_cast<std::uint64_t>(cosine);
    const auto sine_bits = std::bit_cast<std::uint64_t>(sine);
    const std::uint64_t x = (cosine_bits & ~odd) | (sine_bits & odd);
    const std::uint64_t y = (sine_bits & ~odd) | (cosine_bits & odd);
    cosines[i] = std::bit_cast<double>(x ^ (((q + 1) & 2) << 62));
    sines[i] = std::bit_cast<double>(y ^ ((q & 2) << 62));
  }
}

// Writes the products as floats. Returns true if some may have been rounded to the wrong side.
TESSERA_VECTOR_CLONES
bool round_products(const Doubles& radius, const Doubles& unit, std::array<float, kLanes>& out) {
  std::uint64_t unsure = 0;
  for (std::size_t i = 0; i < kLanes; ++i) {
    const double value = radius[i] * unit[i];
    out[i] = static_cast<float>(value);
    const std::uint64_t dropped = std::bit_cast<std::uint64_t>(value) & (kDropped - 1);
    // Below the interval the unsigned difference wraps around to a large value.
    unsure |= static_cast<std::uint64_t>(dropped - (kDropped / 2 - kMargin) <= 2 * kMargin);
  }
  return unsure != 0;
}

// Writes kLanes pairs, starting with pair number `begin`.
void fill_pairs(const Philox& random, std::uint64_t begin, float scale, float* out) {
  Words first, second;
  Doubles radius, cosine, sine;
  std::array<float, kLanes> even, odd;
  philox_words(begin, random.seed(), random.stream(), first, second);
  radii(first, radius);
  cosines_and_sines(second, cosine, sine);
  const bool unsure = round_products(radius, cosine, even) | round_products(radius, sine, odd);
  for (std::size_t i = 0; unsure && i < kLanes; ++i) {
    const auto two = random.normals(begin + i);
    even[i] = two[0], odd[i] = two[1];
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    out[2 * i] = scale * even[i];
    out[2 * i + 1] = scale * odd[i];
  }
}

}  // namespace

void fill_normals(const Philox& random, std::uint64_t first, std::uint64_t count, float scale,
                  float* out) {
  std::uint64_t done = 0;
  while (done < count) {
    const std::uint64_t at = first + done;
    if (at % 2 == 0 && count - done >= 2 * kLanes) {
      fill_pairs(random, at / 2, scale, out + done);
      done += 2 * kLanes;
      continue;
    }
    if (count - done < kFew) {
      for (; done < count; ++done) out[done] = scale * random.normal(first + done);
      return;
    }
    // An odd start, or less than a block: compute a block and copy a part of it.
    std::array<float, 2 * kLanes> some;
    fill_pairs(random, at / 2, scale, some.data());
    const std::uint64_t take = std::min<std::uint64_t>(2 * kLanes - at % 2, count - done);
    std::copy_n(some.begin() + static_cast<std::ptrdiff_t>(at % 2), take, out + done);
    done += take;
  }
}

}  // namespace tessera
