// Label solving on CUDA: normal equations first, one problem per block; those that they may not solve are marked and
// go through a singular value decomposition. Agrees with the CPU to the error bounds of both.
#include "solve_labels/jacobi_cuda.cuh"
#include "solve_labels/normal_equations_cuda.cuh"

namespace leakcore {
namespace {

constexpr int64_t kMostBlocks = 2112;
constexpr int64_t kMostScratch = int64_t{256} << 20;

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// What a block may have of shared memory: 48 KiB anywhere, several times that where it is asked for.
int64_t most_shared(const Device& device) {
  int bytes = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index);
  const int64_t plain = static_cast<int64_t>(kPlainSharedBytes);
  return error == cudaSuccess && bytes > plain ? bytes : plain;
}

int64_t at_least_one(int64_t x) {
  return x < 1 ? 1 : x;
}

// Numbers per block in global memory, and blocks that run at a time.
struct Plan {
  bool normal;          // whether normal equations are possible at all
  bool shared;          // whether their triangle fits shared memory
  size_t shared_bytes;  // of the normal route
  int64_t normal_numbers, jacobi_numbers;
  unsigned normal_blocks, jacobi_blocks;
  int64_t flag_bytes;

  explicit Plan(const SolveLabelsArgs& args) {
    const int64_t n = args.num_samples, d = args.jacobian.numel, problems = args.num_problems;
    const int64_t padded = (n + kGramTile - 1) / kGramTile * kGramTile;
    normal = n > 0 && n <= d;
    const int64_t inside = triangle(n) + kGramColumns * padded + kNormalVectors * n;
    shared = inside * 8 <= most_shared(args.device) - 256;
    shared_bytes = shared ? static_cast<size_t>(inside * 8) : 0;
    normal_numbers = 2 * d + (shared ? 0 : triangle(n) + kNormalVectors * n);
    jacobi_numbers = n * d + n * n + kJacobiVectors * n + 2 * d;
    normal_blocks = blocks(problems, normal_numbers);
    jacobi_blocks = blocks(problems, jacobi_numbers);
    flag_bytes = aligned(problems);
  }

  int64_t bytes() const {
    const int64_t first = normal ? normal_numbers * normal_blocks : 0, second = jacobi_numbers * jacobi_blocks;
    return flag_bytes + aligned(8 * (first > second ? first : second));
  }

 private:
  static unsigned blocks(int64_t problems, int64_t numbers) {
    const int64_t fit = at_least_one(kMostScratch / (8 * at_least_one(numbers)));
    const int64_t most = fit < kMostBlocks ? fit : kMostBlocks;
    return static_cast<unsigned>(at_least_one(problems < most ? problems : most));
  }
};

__global__ void normal_kernel(SolveLabelsArgs args, bool shared, int64_t numbers, double* scratch, uint8_t* solved) {
  LEAKCORE_DYNAMIC_SHARED(double, inside);
  __shared__ double partial[kSolveLabelsWarps];
  const int64_t n = args.num_samples, d = args.jacobian.numel;
  double* const mine = scratch + static_cast<int64_t>(blockIdx.x) * numbers;
  NormalSpace at;
  at.b = mine;
  at.rest = mine + d;
  at.g = shared ? inside : mine + 2 * d;
  at.vectors = at.g + triangle(n);
  at.stage = shared ? at.vectors + kNormalVectors * n : nullptr;
  at.partial = partial;
  for (int64_t problem = blockIdx.x; problem < args.num_problems; problem += gridDim.x) {
    const bool done = solve_normal(args, problem, at);
    if (threadIdx.x == 0) solved[problem] = done;
    __syncthreads();
  }
}

__global__ void jacobi_kernel(SolveLabelsArgs args, int64_t numbers, double* scratch, const uint8_t* solved) {
  __shared__ double partial[kSolveLabelsWarps];
  __shared__ int rotated[1];
  const int64_t n = args.num_samples, d = args.jacobian.numel;
  JacobiSpace at;
  at.a = scratch + static_cast<int64_t>(blockIdx.x) * numbers;
  at.v = at.a + n * d;
  at.vectors = at.v + n * n;
  at.b = at.vectors + kJacobiVectors * n;
  at.rest = at.b + d;
  at.partial = partial;
  at.rotated = rotated;
  for (int64_t problem = blockIdx.x; problem < args.num_problems; problem += gridDim.x) {
    if (solved[problem]) continue;  // the same for the whole block
    solve_jacobi(args, problem, at);
    __syncthreads();
  }
}

}  // namespace

int64_t solve_labels_cuda_scratch(const SolveLabelsArgs& args) {
  return args.num_problems > 0 ? Plan(args).bytes() : 0;
}

Status solve_labels_cuda(const SolveLabelsArgs& args) {
  if (args.num_problems <= 0) return {};
  const char* const name = "solve_labels";
  const DeviceGuard guard(args.device);
  if (const Status refused = guard.status(name); !refused.ok()) return refused;
  const cudaStream_t stream = static_cast<cudaStream_t>(args.device.stream);
  const Plan plan(args);
  uint8_t* const solved = static_cast<uint8_t*>(args.scratch);
  double* const numbers = reinterpret_cast<double*>(solved + plan.flag_bytes);
  cudaError_t error = cudaMemsetAsync(solved, 0, static_cast<size_t>(args.num_problems), stream);
  if (error == cudaSuccess && plan.normal) {
    error = LEAKCORE_LAUNCH(normal_kernel, plan.normal_blocks, kSolveLabelsThreads, plan.shared_bytes, stream, args,
                            plan.shared, plan.normal_numbers, numbers, solved);
  }
  if (error == cudaSuccess) {
    error = LEAKCORE_LAUNCH(jacobi_kernel, plan.jacobi_blocks, kSolveLabelsThreads, 0, stream, args,
                            plan.jacobi_numbers, numbers, solved);
  }
  return cuda_status(error, name);
}

}  // namespace leakcore
