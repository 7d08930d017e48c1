// Half floats (binary16) for code without instructions for them. Everything is static, see vector.h.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float half_value(uint16_t half) {
  const uint32_t exponent = half & 0x7c00, mantissa = half & 0x3ff, wide = (uint32_t)(half & 0x7fff) << 13;
  const uint32_t bits = wide + (exponent == 0x7c00 ? 0x70000000 : 0x38000000);  // infinity and NaN; normal numbers
  const float small = (float)mantissa * 0x1p-24f;
  float value;
  memcpy(&value, &bits, 4);
  value = exponent ? value : small;
  return half & 0x8000 ? -value : value;
}

// To the nearest, ties to even; from 65520 on infinity.
static inline uint16_t half_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
  if (bits >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (bits < 0x38800000) return (uint16_t)(sign | (uint32_t)std::nearbyintf(std::fabs(value) * 0x1p24f));
  return (uint16_t)(sign | (bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13);
}
