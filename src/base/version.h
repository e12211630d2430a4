// The version of this build, as in CHANGELOG.md.
#pragma once

namespace tutti {

extern const char* const version;

}  // namespace tutti
