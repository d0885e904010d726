// The pieces of rows that norms will read, in that order: what to bring into the cache while others are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "clip/panel.h"
#include "core/runtime/line.h"

namespace leakcore {

// Columns of one parameter. joint: where they stand in the joint gradient; slot: where in a partial sum, aligned.
struct Segment {
  int32_t param;
  int64_t first, count, joint, slot;

  int64_t room() const { return (count + 7) / 8 * 8; }  // whole eights
};

// Neighbouring rows of one run whose norms are taken together, segment by segment: every other group starts with
// its last segment.
struct Group {
  int64_t run, begin, end, block;
  bool backwards;

  size_t segment(size_t step, size_t segments) const { return backwards ? segments - 1 - step : step; }
};

class Ahead {
 public:
  Ahead(const Rows* grads, const std::vector<Segment>& segments, const std::vector<Group>& groups)
      : grads_(grads), segments_(segments), groups_(groups) {}

  // To what is read `bytes` after the start of a group.
  void start(size_t group, int64_t bytes) {
    group_ = group;
    step_ = 0;
    first_piece();
    skip(bytes);
  }
  const char* here() const { return at_; }
  int64_t left() const { return left_; }  // bytes in one piece from here; 0 after the last
  void skip(int64_t bytes) {
    while (bytes >= left_ && left_ > 0) {
      bytes -= left_;
      if (++row_ == groups_[group_].end) {
        if (++step_ == segments_.size()) {
          step_ = 0;
          ++group_;
        }
        if (group_ == groups_.size()) {
          left_ = 0;
          return;
        }
        first_piece();
      } else {
        piece();
      }
    }
    at_ += std::min(bytes, left_);
    left_ -= std::min(bytes, left_);
  }
  // As skip, with what is skipped asked for.
  void bring(int64_t bytes) {
    while (bytes > 0 && left_ > 0) {
      const int64_t here = std::min(bytes, left_);
      for (int64_t line = 0; line < here; line += kLine) __builtin_prefetch(at_ + line, 0, 2);
      skip(here);
      bytes -= here;
    }
  }

 private:
  // Of a segment: its first row, or where rows follow on each other in memory all of them.
  void first_piece() {
    const Group& g = groups_[group_];
    const Segment& s = segment();
    row_ = g.begin;
    piece();
    if (grads_[s.param].row_stride == s.count) {
      row_ = g.end - 1;
      left_ *= g.end - g.begin;
    }
  }
  void piece() {
    const Segment& s = segment();
    at_ = static_cast<const char*>(row_in_place(grads_[s.param], groups_[group_].run, row_, s.first));
    left_ = s.count * size_of(grads_[s.param].dtype);
  }

  const Segment& segment() const { return segments_[groups_[group_].segment(step_, segments_.size())]; }

  const Rows* grads_;
  const std::vector<Segment>& segments_;
  const std::vector<Group>& groups_;
  size_t group_ = 0, step_ = 0;
  int64_t row_ = 0, left_ = 0;
  const char* at_ = nullptr;
};

}  // namespace leakcore
