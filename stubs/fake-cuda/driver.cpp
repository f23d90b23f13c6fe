// A stand-in for NVIDIA's driver, so that the CUDA runtime can be tried on a machine without a GPU.
//
// Device memory is host memory. With NVIDIA's own NVRTC kernels are compiled and loaded but not run: the modules and launches are counted, and
// written to the file that BIMETAL_FAKE_CUDA_LOG names when the process ends. With the NVRTC beside this file a module is C++ for the host (see nvrtc.cpp),
// which is compiled here and run.
//
// Only what cubecl's runtime calls is here. It must not be called libcuda.so.1: NVRTC looks for that and calls into it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

typedef int Result;
typedef unsigned long long Address;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NO_BINARY = 209, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900 };
#define API extern "C" Result

namespace {

int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int compute_capability() { return number("BIMETAL_FAKE_CUDA_SM", 90); }

struct Counts {
    std::mutex lock;
    size_t modules = 0, launches = 0, graphs = 0, graph_launches = 0, graph_kernels = 0;
    std::map<std::string, size_t> kernels;
    ~Counts() {
        const char *path = getenv("BIMETAL_FAKE_CUDA_LOG");
        FILE *file = path ? fopen(path, "w") : nullptr;
        if (!file) return;
        fprintf(file, "{\"modules\": %zu, \"launches\": %zu, \"graphs\": %zu, \"graph_launches\": %zu, \"graph_kernels\": %zu, \"kernels\": {", modules, launches, graphs,
                graph_launches, graph_kernels);
        const char *comma = "";
        for (auto &k : kernels) {
            fprintf(file, "%s\"%s\": %zu", comma, k.first.c_str(), k.second);
            comma = ", ";
        }
        fprintf(file, "}}\n");
        fclose(file);
    }
} counts;

typedef void (*Run)(void **, const unsigned *, const unsigned *, unsigned);

struct Module {
    std::string image;
    void *library = nullptr;
};

struct Function {
    std::string name;
    Run run = nullptr;
};

// What a stream was told while it was recorded: kernels only, as nothing else may be in a graph of ours.
struct Graph {
    size_t kernels = 0;
};
std::mutex recording_lock;
Graph *recording = nullptr;

bool is_recording() {
    std::lock_guard<std::mutex> guard(recording_lock);
    return recording != nullptr;
}

// C++ for the host begins with this line.
const char *HOST = "// bimetal host code";

Result build(Module *m) {
    static int next = 0;
    const char *folder = getenv("TMPDIR");
    std::string base = std::string(folder ? folder : P_tmpdir) + "/bimetal-fake-cuda-" + std::to_string(getpid()) + "-" + std::to_string(next++);
    std::string source = base + ".cpp", library = base + ".so";
    FILE *file = fopen(source.c_str(), "w");
    if (!file) return NO_BINARY;
    fwrite(m->image.data(), 1, m->image.size(), file);
    fclose(file);
    const char *root = getenv("CUDA_PATH");
    std::string command = "c++ -I" + std::string(root ? root : ".") + "/include -std=c++20 -O1 -w -shared -fPIC -ffp-contract=off -pthread -o " + library + " " + source;
    bool built = system(command.c_str()) == 0;
    if (built) m->library = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!getenv("BIMETAL_FAKE_CUDA_KEEP")) {
        unlink(source.c_str());
        unlink(library.c_str());
    }
    return m->library ? SUCCESS : NO_BINARY;
}

// Zeros, so that what kernels would have written is the same in every run.
Result allocate(void **p, size_t bytes) {
    if (is_recording()) return CAPTURE_UNSUPPORTED;
    if (posix_memalign(p, 512, bytes ? bytes : 1)) return OUT_OF_MEMORY;
    return memset(*p, 0, bytes), SUCCESS;
}

} // namespace

// The device.
API cuInit(unsigned) { return SUCCESS; }
API cuDriverGetVersion(int *v) { return *v = number("BIMETAL_FAKE_CUDA_VERSION", 13050), SUCCESS; }
API cuDeviceGetCount(int *n) { return *n = 1, SUCCESS; }
API cuDeviceGet(int *d, int i) { return *d = i, i == 0 ? SUCCESS : INVALID_VALUE; }
API cuDeviceGetName(char *name, int size, int) { return snprintf(name, size, "fake sm_%d", compute_capability()), SUCCESS; }
API cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = 16ull << 30, SUCCESS; }
API cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = *total = 16ull << 30, SUCCESS; }
API cuDeviceGetUuid_v2(unsigned char *id, int) { return memset(id, 1, 16), SUCCESS; }
API cuDeviceGetUuid(unsigned char *id, int d) { return cuDeviceGetUuid_v2(id, d); }
API cuDeviceGetPCIBusId(char *id, int size, int) { return snprintf(id, size, "0000:01:00.0"), SUCCESS; }
API cuDeviceCanAccessPeer(int *can, int, int) { return *can = 0, SUCCESS; }
API cuDeviceGetAttribute(int *value, int attribute, int) {
    int sm = compute_capability();
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;          // threads of a block, and along x and y
    case 4: *value = 64; break;                            // along z
    case 5: *value = 2147483647; break;                    // blocks along x
    case 6: case 7: *value = 65535; break;                 // along y and z
    case 8: *value = 49152; break;                         // shared memory of a block
    case 10: *value = 32; break;                           // warp
    case 13: *value = 1980000; break;                      // clock in kHz
    case 16: *value = 132; break;                          // multiprocessors
    case 75: *value = sm / 10; break;
    case 76: *value = sm % 10; break;
    case 97: *value = sm >= 90 ? 232448 : 166912; break;   // shared memory that can be asked for
    default: *value = 1;
    }
    return SUCCESS;
}

// Contexts, streams and events do nothing: work is done when it is asked for.
API cuDevicePrimaryCtxRetain(void **c, int) { return *c = (void *)1, SUCCESS; }
API cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API cuCtxSetCurrent(void *) { return SUCCESS; }
API cuCtxGetCurrent(void **c) { return *c = (void *)1, SUCCESS; }
API cuCtxSynchronize() { return SUCCESS; }
API cuCtxEnablePeerAccess(void *, unsigned) { return SUCCESS; }
API cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = 0, SUCCESS; }
API cuStreamCreate(void **s, unsigned) { return *s = (void *)2, SUCCESS; }
API cuStreamCreateWithPriority(void **s, unsigned, int) { return *s = (void *)2, SUCCESS; }
API cuStreamSynchronize(void *) { return SUCCESS; }
API cuStreamQuery(void *) { return SUCCESS; }
API cuStreamDestroy_v2(void *) { return SUCCESS; }
API cuStreamWaitEvent(void *, void *, unsigned) { return SUCCESS; }
API cuStreamIsCapturing(void *, int *status) { return *status = is_recording(), SUCCESS; }
API cuEventCreate(void **e, unsigned) { return *e = (void *)3, SUCCESS; }
API cuEventRecord(void *, void *) { return SUCCESS; }
API cuEventSynchronize(void *) { return SUCCESS; }
API cuEventQuery(void *) { return SUCCESS; }
API cuEventElapsedTime_v2(float *ms, void *, void *) { return *ms = 0.001f, SUCCESS; }
API cuEventElapsedTime(float *ms, void *a, void *b) { return cuEventElapsedTime_v2(ms, a, b); }
API cuEventDestroy_v2(void *) { return SUCCESS; }

// Memory.
API cuMemAlloc_v2(Address *p, size_t bytes) { return allocate((void **)p, bytes); }
API cuMemAllocAsync(Address *p, size_t bytes, void *) { return allocate((void **)p, bytes); }
API cuMemFree_v2(Address p) { return free((void *)p), SUCCESS; }
API cuMemFreeAsync(Address p, void *) { return free((void *)p), SUCCESS; }
API cuMemAllocHost_v2(void **p, size_t bytes) { return allocate(p, bytes); }
API cuMemHostAlloc(void **p, size_t bytes, unsigned) { return allocate(p, bytes); }
API cuMemFreeHost(void *p) { return free(p), SUCCESS; }
API cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t n, void *) {
    return is_recording() ? CAPTURE_UNSUPPORTED : (memcpy((void *)to, from, n), SUCCESS);
}
API cuMemcpyDtoHAsync_v2(void *to, Address from, size_t n, void *) {
    return is_recording() ? CAPTURE_UNSUPPORTED : (memcpy(to, (void *)from, n), SUCCESS);
}
API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t n, void *) { return memmove((void *)to, (void *)from, n), SUCCESS; }
API cuMemsetD8Async(Address to, unsigned char v, size_t n, void *) { return memset((void *)to, v, n), SUCCESS; }

struct Copy2D {
    struct Side { size_t x, y; int type; void *host; Address device; void *array; size_t pitch; } from, to;
    size_t width, height;
};
API cuMemcpy2DAsync_v2(const Copy2D *c, void *) {
    auto at = [](const Copy2D::Side &s) { return (char *)(s.type == 1 ? s.host : (void *)s.device) + s.y * s.pitch + s.x; };
    for (size_t row = 0; row < c->height; row++)
        memcpy(at(c->to) + row * c->to.pitch, at(c->from) + row * c->from.pitch, c->width);
    return SUCCESS;
}

// Kernels.
API cuModuleLoadData(void **out, const void *image) {
    auto *m = new Module{(const char *)image};
    std::lock_guard<std::mutex> guard(counts.lock);
    counts.modules++;
    *out = m;
    return m->image.compare(0, strlen(HOST), HOST) == 0 ? build(m) : SUCCESS;
}
API cuModuleUnload(void *) { return SUCCESS; }
API cuModuleGetFunction(void **out, void *module, const char *name) {
    auto *m = (Module *)module;
    auto *f = new Function{name};
    *out = f;
    if (m->library) {
        f->run = (Run)dlsym(m->library, "bimetal_run");
        return f->run ? SUCCESS : NOT_FOUND;
    }
    // PTX names its entry points.
    return m->image.find(std::string(".entry ") + name) == std::string::npos ? NOT_FOUND : SUCCESS;
}
API cuFuncSetAttribute(void *, int, int) { return SUCCESS; }
API cuFuncGetAttribute(int *value, int, void *) { return *value = 0, SUCCESS; }
API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *, void **params, void **) {
    auto *f = (Function *)function;
    {
        std::lock_guard<std::mutex> guard(counts.lock);
        counts.launches++;
        counts.kernels[f->name]++;
    }
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    {
        std::lock_guard<std::mutex> guard(recording_lock);
        // How large arguments are, to keep them, only the kernel knows.
        if (recording) return f->run ? CAPTURE_UNSUPPORTED : (recording->kernels++, SUCCESS);
    }
    if ((unsigned long long)bx * by * bz > 1024 || gy > 65535 || gz > 65535 || !gx || !gy || !gz) return INVALID_VALUE;
    if (f->run) f->run(params, grid, block, shared);
    return SUCCESS;
}

// Graphs: kernels are counted when they are replayed.
API cuStreamBeginCapture_v2(void *, int) {
    std::lock_guard<std::mutex> guard(recording_lock);
    if (recording) return INVALID_VALUE;
    return recording = new Graph, SUCCESS;
}
API cuStreamEndCapture(void *, void **graph) {
    std::lock_guard<std::mutex> guard(recording_lock);
    return *graph = recording, recording = nullptr, *graph ? SUCCESS : INVALID_VALUE;
}
API cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (!nodes) return *count = ((Graph *)graph)->kernels, SUCCESS;
    for (size_t i = 0; i < *count; i++) nodes[i] = graph;
    return SUCCESS;
}
API cuGraphNodeGetType(void *, int *type) { return *type = 0, SUCCESS; }
API cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long) {
    std::lock_guard<std::mutex> guard(counts.lock);
    counts.graphs++;
    return *exec = new Graph(*(Graph *)graph), SUCCESS;
}
API cuGraphUpload(void *, void *) { return SUCCESS; }
API cuGraphLaunch(void *exec, void *) {
    std::lock_guard<std::mutex> guard(counts.lock);
    counts.graph_launches++;
    counts.graph_kernels += ((Graph *)exec)->kernels;
    return SUCCESS;
}
API cuGraphDestroy(void *graph) { return delete (Graph *)graph, SUCCESS; }
API cuGraphExecDestroy(void *exec) { return delete (Graph *)exec, SUCCESS; }

API cuGetErrorName(int e, const char **name) { return *name = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR", SUCCESS; }
API cuGetErrorString(int, const char **text) { return *text = "an error of the stand-in for NVIDIA's driver", SUCCESS; }
