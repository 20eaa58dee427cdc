#include "backend.h"
namespace ekiden {
const Backend* const avx2_vnni_backend = nullptr;
}
