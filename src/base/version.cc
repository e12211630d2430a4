#include "base/version.h"

namespace tutti {

const char* const version = TUTTI_VERSION;

}  // namespace tutti
