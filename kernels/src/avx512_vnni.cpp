#include "backend.h"
namespace ekiden {
const Backend* const avx512_vnni_backend = nullptr;
}
