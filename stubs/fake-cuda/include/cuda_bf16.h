// What kernels need of this header is in host.hpp.
