// CUDA C++ as far as the kernels of this workspace use it, for the host: a thread of the host for every thread of a block, blocks one after the other.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

using std::max;
using std::min;
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static

struct bimetal_dim3 { unsigned x, y, z; };
static thread_local bimetal_dim3 threadIdx, blockIdx;
static bimetal_dim3 blockDim, gridDim;

// A barrier that those who left the kernel do not hold up.
struct bimetal_barrier {
    std::mutex lock;
    std::condition_variable moved;
    unsigned members = 0, waiting = 0, generation = 0;
    void open(std::unique_lock<std::mutex> &) { waiting = 0; generation++; moved.notify_all(); }
    void wait() {
        std::unique_lock<std::mutex> l(lock);
        unsigned mine = generation;
        if (++waiting >= members) return open(l);
        moved.wait(l, [&] { return generation != mine; });
    }
    void leave() {
        std::unique_lock<std::mutex> l(lock);
        members--;
        if (waiting && waiting >= members) open(l);
    }
};
static bimetal_barrier bimetal_block, bimetal_warps[32], bimetal_end;
static std::vector<char> bimetal_memory;
static char *bimetal_shared() { return (char *)(((uintptr_t)bimetal_memory.data() + 127) & ~(uintptr_t)127); }
static unsigned bimetal_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
static void __syncthreads() { bimetal_block.wait(); }
static void __syncwarp(unsigned = 0) { bimetal_warps[bimetal_thread() / 32].wait(); }
static void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T> static T atomicOr(T *p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
template <class T> static T atomicAnd(T *p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }
template <class T> static T atomicAdd(T *p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
template <class T> static T atomicExch(T *p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
template <class T> static T atomicCAS(T *p, T want, T v) { __atomic_compare_exchange_n(p, &want, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); return want; }

template <class... A> static void bimetal_launch(void (*kernel)(A...), void **p, const unsigned *grid, const unsigned *block, unsigned shared, bool together) {
    blockDim = {block[0], block[1], block[2]};
    gridDim = {grid[0], grid[1], grid[2]};
    bimetal_memory.assign(shared + 256, (char)0xff);
    unsigned threads = block[0] * block[1] * block[2];
    size_t blocks = (size_t)grid[0] * grid[1] * grid[2];
    auto enter = [&](unsigned t, size_t b) {
        threadIdx = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
        blockIdx = {(unsigned)(b % grid[0]), (unsigned)(b / grid[0] % grid[1]), (unsigned)(b / grid[0] / grid[1])};
        [&]<size_t... I>(std::index_sequence<I...>) { kernel(*(typename std::remove_const<A>::type *)p[I]...); }(std::index_sequence_for<A...>());
    };
    if (!together) {
        for (size_t b = 0; b < blocks; b++)
            for (unsigned t = 0; t < threads; t++) enter(t, b);
        return;
    }
    bimetal_end.members = threads;
    auto run = [&](unsigned t) {
        for (size_t b = 0; b < blocks; b++) {
            if (t == 0) {
                bimetal_block.members = threads;
                for (unsigned w = 0; w * 32 < threads; w++) bimetal_warps[w].members = min(32u, threads - w * 32);
            }
            bimetal_end.wait();
            enter(t, b);
            bimetal_block.leave();
            bimetal_warps[t / 32].leave();
            bimetal_end.wait();
        }
    };
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; t++) all.emplace_back(run, t);
    for (auto &t : all) t.join();
}

// Floats of 16 bits are moved, and widened for products.
struct __half { uint16_t bits; };
struct __nv_bfloat16 { uint16_t bits; };
static float bimetal_float(float x) { return x; }
static float bimetal_float(__nv_bfloat16 x) { uint32_t w = (uint32_t)x.bits << 16; float f; memcpy(&f, &w, 4); return f; }
static float bimetal_mini(uint32_t bits, int exponent, int mantissa) {
    uint32_t sign = bits >> (exponent + mantissa) & 1, e = bits >> mantissa & ((1u << exponent) - 1), m = bits & ((1u << mantissa) - 1);
    int bias = (1 << (exponent - 1)) - 1;
    bool top = e == (1u << exponent) - 1;
    float v;
    if (exponent == 4 && top && m == 7) v = NAN;
    else if (exponent == 5 && top) v = m ? NAN : INFINITY;
    else v = e ? ldexpf(1.0f + m / (float)(1 << mantissa), (int)e - bias) : ldexpf((float)m, 1 - bias - mantissa);
    return sign ? -v : v;
}
static float bimetal_float(__half x) { return bimetal_mini(x.bits, 5, 10); }

// Cooperative matrices: every thread holds the whole of it.
namespace nvcuda { namespace wmma {
struct matrix_a {}; struct matrix_b {}; struct accumulator {}; struct row_major {}; struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32 {}; }
template <class T> struct element { typedef T type; };
template <> struct element<precision::tf32> { typedef float type; };
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment;
template <int M, int N, int K, class T, class L> struct fragment<matrix_a, M, N, K, T, L> { float x[M][K]; };
template <int M, int N, int K, class T, class L> struct fragment<matrix_b, M, N, K, T, L> { float x[K][N]; };
template <int M, int N, int K, class T> struct fragment<accumulator, M, N, K, T> { float x[M][N]; };
template <class U, int M, int N, int K, class T, class L> static void load_matrix_sync(fragment<U, M, N, K, T, L> &f, const typename element<T>::type *p, unsigned line) {
    if ((uintptr_t)p % 32 || line * sizeof(*p) % 16) __builtin_trap();
    constexpr int rows = sizeof(f.x) / sizeof(f.x[0]), columns = sizeof(f.x[0]) / 4;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) f.x[r][c] = bimetal_float(std::is_same<L, row_major>::value ? p[r * line + c] : p[c * line + r]);
}
template <class F> static void fill_fragment(F &f, float v) { for (auto &row : f.x) for (auto &x : row) x = v; }
template <int M, int N, int K, class T, class LA, class LB> static void mma_sync(fragment<accumulator, M, N, K, float> &d, const fragment<matrix_a, M, N, K, T, LA> &a, const fragment<matrix_b, M, N, K, T, LB> &b, const fragment<accumulator, M, N, K, float> &c) {
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float s = c.x[m][n];
            for (int k = 0; k < K; k++) s += a.x[m][k] * b.x[k][n];
            d.x[m][n] = s;
        }
}
template <int M, int N, int K> static void store_matrix_sync(float *p, const fragment<accumulator, M, N, K, float> &f, unsigned line, layout_t) {
    if ((uintptr_t)p % 32 || line % 4) __builtin_trap();
    // One thread of the warp is enough.
    if (bimetal_thread() % 32) return;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) p[m * line + n] = f.x[m][n];
}
} }

// `mma` of 8-bit floats, 16 x 8 x 32: rows by groups of four threads, words of the sum by threads of a group.
struct bimetal_registers { uint32_t a[4], b[2]; float c[4]; };
static bimetal_registers bimetal_lanes[32][32];
static void bimetal_mma(const char *left, const char *right, float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
    unsigned thread = bimetal_thread(), lane = thread % 32;
    auto &lanes = bimetal_lanes[thread / 32];
    lanes[lane] = {{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}};
    __syncwarp();
    auto value = [](const char *kind, uint32_t word, int byte) { return bimetal_mini(word >> 8 * byte & 255, kind[1] - '0', kind[3] - '0'); };
    float out[4];
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
        float s = lanes[lane].c[i];
        for (int k = 0; k < 32; k++) {
            auto &from = lanes[row % 8 * 4 + k % 16 / 4];
            auto &other = lanes[column * 4 + k % 16 / 4];
            s += value(left, from.a[(row >= 8) + (k >= 16 ? 2 : 0)], k % 4) * value(right, other.b[k >= 16], k % 4);
        }
        out[i] = s;
    }
    __syncwarp();
    d0 = out[0], d1 = out[1], d2 = out[2], d3 = out[3];
}
