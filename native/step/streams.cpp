// Several streams of each token (TM_EXPAND to TM_JOIN): a layer predicts all of them as sums of all, computes with the first, and
// corrects all by as much as its result differs from the prediction. A token belongs to one thread.
#include <cmath>

#include "step/worker.h"

namespace {

// Lanes of their own, so that the sum has one order whatever vectors a processor has.
float dot(const float* a, const float* b, int n) {
  float lanes[TILE] = {}, total = 0;
  int i = 0;
  for (; i + TILE <= n; i += TILE)
    for (int j = 0; j < TILE; j++) lanes[j] += a[i + j] * b[i + j];
  for (float lane : lanes) total += lane;
  for (; i < n; i++) total += a[i] * b[i];
  return total;
}

float sum(const float* x, int n) {
  float lanes[TILE] = {}, total = 0;
  int i = 0;
  for (; i + TILE <= n; i += TILE)
    for (int j = 0; j < TILE; j++) lanes[j] += x[i + j];
  for (float lane : lanes) total += lane;
  for (; i < n; i++) total += x[i];
  return total;
}

float mean_square(const float* x, int n) { return dot(x, x, n) / (float)n; }

}  // namespace

// Stored products become as large as the first stream.
void Worker::rescale_further(const TmOp& op, int64_t token, const float* first) {
  const int hidden = model_.shape.hidden;
  const float wanted = std::sqrt(mean_square(first, hidden));
  for (int i = 1; i < model_.streams; i++) {
    float* further = stored(token) + op.column + (i - 1) * hidden;
    const float size = std::sqrt(std::max(mean_square(further, hidden), 1e-5f));
    for (int c = 0; c < hidden; c++) further[c] = further[c] * wanted / size;
  }
}

void Worker::expand_streams(const TmOp& op) {
  const size_t bytes = sizeof(float) * (size_t)model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    rescale_further(op, t, residual(t));
    memcpy(stream(t, 0), residual(t), bytes);
    for (int i = 1; i < model_.streams; i++) memcpy(stream(t, i), stored(t) + op.column + (i - 1) * model_.shape.hidden, bytes);
  }
}

void Worker::join_streams(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    const float* further = stored(t) + op.column;
    float* sums = residual(t);
    memcpy(sums, stream(t, 0), sizeof(float) * (size_t)hidden);
    rescale_further(op, t, sums);
    for (int i = 1; i < model_.streams; i++) kernels_.add(sums, further + (i - 1) * hidden, hidden);
    for (int c = 0; c < hidden; c++) sums[c] /= (float)model_.streams;
  }
}

// The factors of the coefficients, one for each stream: tanh(router(norm(x) * scale)).
void Worker::route_streams(const TmOp& op, const float* x, int64_t token, float* routed) {
  const int hidden = model_.shape.hidden;
  float* row = normed_row(x, token, op.weight, op);
  for (int c = 0; c < hidden; c++) row[c] *= op.scale;
  for (int i = 0; i < model_.streams; i++) routed[i] = dot(row, op.router + (int64_t)i * hidden, hidden);
  kernels_.softcap(routed, model_.streams, 1);  // tanh
}

// A row of scratch memory, normed, with zeros behind it.
float* Worker::normed_row(const float* x, int64_t token, const float* weight, const TmOp& op) {
  const int hidden = model_.shape.hidden;
  float* row = scratch_.row.get();
  memcpy(row, x, sizeof(float) * (size_t)hidden);
  std::fill(row + hidden, row + model_.hidden_stride(), 0.0f);
  kernels_.norm(row, row, hidden, own(weight, token), nullptr, op.eps, 0);
  return row;
}

float Worker::coefficient(const TmOp& op, int number, const float* routed) const {
  float sum = 0;
  for (int m = 0; m < model_.streams; m++) sum += routed[m] * op.coefficients[number * model_.streams + m];
  return sum;
}

void Worker::predict_streams(const TmOp& op) {
  const int hidden = model_.shape.hidden, num = model_.streams;
  const size_t bytes = sizeof(float) * (size_t)hidden;
  float routed[MAX_STREAMS], *before = scratch_.streams.get();
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    route_streams(op, stream(t, 0), t, routed);
    for (int i = 0; i < num; i++) memcpy(before + i * hidden, stream(t, i), bytes);
    for (int k = 0; k < num * num; k++)
      kernels_.add_weighted(stream(t, k / num), before + k % num * hidden, coefficient(op, k, routed), hidden);
    memcpy(residual(t), stream(t, 0), bytes);
  }
}

// What stands beside attention: its normed input, and stored products of it, normed.
void Worker::add_beside(const TmOp& op) {
  const int hidden = model_.shape.hidden;
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    float* sums = residual(t);
    float* products = stored(t) + op.column;
    const float* row = normed_row(products, t, op.weight, op);
    memcpy(products, row, sizeof(float) * (size_t)hidden);
    row = normed_row(stream(t, 0), t, op.input_norm, op);
    for (int c = 0; c < hidden; c++) sums[c] = (sums[c] + (row[c] + products[c])) * op.rescale;
  }
}

void Worker::correct_streams(const TmOp& op) {
  const int hidden = model_.shape.hidden, num = model_.streams;
  float routed[MAX_STREAMS];
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    float* change = residual(t);
    route_streams(op, change, t, routed);
    for (int c = 0; c < hidden; c++) change[c] -= stream(t, 0)[c];
    for (int i = 0; i < num; i++) kernels_.add_weighted(stream(t, i), change, coefficient(op, i, routed) + 1, hidden);
    for (int c = 0; c < hidden; c++) change[c] = op.factors ? stream(t, 0)[c] * op.factors[c] : stream(t, 0)[c];
  }
}

// Adds normed products to the further streams.
void Worker::spread_streams(const TmOp& op) {
  const auto [from, to] = share(plan_.step->num_tokens);
  for (int t = from; t < to; t++) {
    const float* row = normed_row(stored(t) + op.column, t, op.weight, op);
    for (int i = 1; i < model_.streams; i++) kernels_.add(stream(t, i), row, model_.shape.hidden);
  }
}

// Of the gates of a token what lies above mean + cutoff * deviation is left, less by it.
void Worker::keep_largest(const TmOp& op, float* gates) const {
  const int width = op.outputs;
  const float mean = sum(gates, width) / (float)width;
  float* apart = scratch_.apart.get();
  for (int i = 0; i < width; i++) apart[i] = gates[i] - mean;
  const float limit = mean + std::sqrt(mean_square(apart, width)) * op.cutoff;
  for (int i = 0; i < width; i++) gates[i] = std::max(gates[i] - limit, 0.0f);
}
