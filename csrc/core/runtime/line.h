#pragma once

#include <cstdint>

namespace leakcore {

constexpr int64_t kLine = 64;  // bytes that caches move at a time

}  // namespace leakcore
