// A stand-in for NVRTC whose "PTX" is C++ for the host: with the driver beside this file kernels run, slowly, on a machine without a GPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>

namespace {
struct Program {
    std::string source, code, log;
};

std::string replace(const std::string &text, const char *pattern, const char *with) { return std::regex_replace(text, std::regex(pattern), with); }

// Inline PTX of products of 8-bit floats, as a call.
std::string products(const std::string &text) {
    std::string out;
    size_t at = 0, from;
    while ((from = text.find("asm", at)) != std::string::npos) {
        size_t open = text.find('(', from), end = text.find(");", from);
        std::string statement = text.substr(from, end + 2 - from);
        if (open == std::string::npos || end == std::string::npos || statement.find("mma.sync.aligned.m16n8k32") == std::string::npos) {
            out += text.substr(at, from + 3 - at);
            at = from + 3;
            continue;
        }
        out += text.substr(at, from - at);
        std::smatch kind;
        std::regex_search(statement, kind, std::regex("f32\\.(e[45]m[23])\\.(e[45]m[23])\\.f32"));
        std::string call = "bimetal_mma(\"" + kind[1].str() + "\", \"" + kind[2].str() + "\"";
        std::regex operand("\"[=+]?[rf]\"\\s*\\(([^()]*)\\)");
        for (std::sregex_iterator i(statement.begin(), statement.end(), operand), last; i != last; ++i) call += ", " + (*i)[1].str();
        out += call + ");";
        at = end + 2;
    }
    return out + text.substr(at);
}
} // namespace

extern "C" {
int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }
const char *nvrtcGetErrorString(int e) { return e ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }
int nvrtcCreateProgram(void **out, const char *source, const char *, int, const char *const *, const char *const *) {
    return *out = new Program{source}, 0;
}
int nvrtcDestroyProgram(void **p) { return delete (Program *)*p, *p = nullptr, 0; }
int nvrtcCompileProgram(void *program, int, const char *const *) {
    auto *p = (Program *)program;
    std::smatch name;
    if (!std::regex_search(p->source, name, std::regex("__global__ void[^{;]*?(\\w+)\\s*\\((?=[^()]*v)"))) return p->log = "no kernel", 6;
    std::string text = replace(p->source, "extern __shared__ __align__\\(\\d+\\) char (\\w+)\\[\\];", "char *const $1 = bimetal_shared();");
    text = replace(text, "typedef [a-z ]+ u?int\\d+_t;", "");
    text = products(text);
    bool together = text.find("__sync") != std::string::npos || text.find("wmma::") != std::string::npos || text.find("bimetal_mma") != std::string::npos;
    p->code = "// bimetal host code\n#include <host.hpp>\n" + text + "\nextern \"C\" void bimetal_run(void **p, const unsigned *grid, const unsigned *block, unsigned shared) {\n"
        "    bimetal_launch(" + name[1].str() + ", p, grid, block, shared, " + (together ? "true" : "false") + ");\n}\n";
    return 0;
}
int nvrtcGetPTXSize(void *p, size_t *n) { return *n = ((Program *)p)->code.size() + 1, 0; }
int nvrtcGetPTX(void *p, char *out) { return memcpy(out, ((Program *)p)->code.c_str(), ((Program *)p)->code.size() + 1), 0; }
int nvrtcGetProgramLogSize(void *p, size_t *n) { return *n = ((Program *)p)->log.size() + 1, 0; }
int nvrtcGetProgramLog(void *p, char *out) { return memcpy(out, ((Program *)p)->log.c_str(), ((Program *)p)->log.size() + 1), 0; }
}
