#include "tests/oracle/activated.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace raggemm {
namespace {

float Polynomial(const std::vector<float>& coefficients, float x) {
  float sum = coefficients.back();
  for (size_t i = coefficients.size() - 1; i-- > 0;) sum = std::fma(sum, x, coefficients[i]);
  return sum;
}

// Returns e^x for x <= 0. Splits x into n * ln(2) + r, and approximates e^r by 1 + r + r^2 times a polynomial of five
// coefficients. ln(2) is the difference of two floats, for more digits.
float Exp(float x) {
  if (std::isnan(x)) return x;
  x = std::max(x, -104.0F);
  const double n = std::nearbyint(static_cast<double>(x) * static_cast<double>(1.44269504F));
  const auto whole = static_cast<float>(n);
  const float r = std::fma(whole, 1.9046542e-9F, std::fma(whole, -0x1.62e43p-1F, x));
  const float terms = Polynomial({0x1p-1F, 0x1.55548ap-3F, 0x1.55547ap-5F, 0x1.123ebep-7F, 0x1.6d9a92p-10F}, r);
  return std::ldexp(std::fma(r * r, terms, r) + 1, static_cast<int>(n));
}

float Sigmoid(float x) {
  const float e = Exp(-std::abs(x));
  return (x < 0 ? e : 1.0F) / (e + 1);
}

// Returns the normal CDF. For -|x| it is e^(-x^2/2) times a polynomial of (|x| - 3) / (|x| + 3).
float NormalCdf(float x) {
  const float y = std::abs(x) > 15 ? 15 : std::abs(x), square = y * y, rest = std::fma(y, y, -square);
  float e = Exp(square * -0.5F);
  e = std::fma(e, rest * -0.5F, e);
  const float tail =
      e * Polynomial({0x1.f1b89cp-4F, -0x1.a6b66ap-3F, 0x1.f8bad6p-4F, -0x1.7a942ep-5F, 0x1.91dab8p-8F, 0x1.7ca93ep-9F,
                      -0x1.01a418p-10F, -0x1.62fdc8p-12F, 0x1.e04466p-14F, 0x1.b9e20ap-15F},
                     (y - 3) / (y + 3));
  return x < 0 ? tail : 1 - tail;
}

}  // namespace

ActivationNumbers NumbersFor(Activation activation, std::optional<float> alpha, std::optional<float> limit) {
  return {alpha.value_or(1.702F), limit.value_or(activation == Activation::kSwigluOai ? 7 : 10)};
}

bool Clamps(Activation activation) {
  return activation == Activation::kSwigluOai || activation == Activation::kSwigluClamped;
}

float Activated(Activation activation, const ActivationNumbers& numbers, float x) {
  switch (activation) {
    case Activation::kSilu:
    case Activation::kSwigluClamped:
      return x * Sigmoid(x);
    case Activation::kGelu:
      return x * NormalCdf(x);
    case Activation::kGeluTanh:
      return x * Sigmoid(x * std::fma(x * x, 0.0713548163F, 1.59576912F));
    case Activation::kRelu:
      return x <= 0 ? 0 : x;
    case Activation::kRelu2:
      return x <= 0 ? 0 : x * x;
    case Activation::kQuickGelu:
    case Activation::kSwigluOai:
      break;
  }
  return x * Sigmoid(x * numbers.alpha);
}

float Activated(Activation activation, const ActivationNumbers& numbers, float gate, float up) {
  const float limit = numbers.limit;
  if (Clamps(activation)) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  if (activation == Activation::kSwigluOai) up += 1;
  return Activated(activation, numbers, gate) * up;
}

}  // namespace raggemm
