// Where the ranks of a local job meet: a private folder in memory (/dev/shm, else $TMPDIR) for
// their shared-memory files and sockets. It is removed with all that is in it by the destructor;
// should the owner be killed, by the next MeetingPlace of the same user.
#pragma once
#include "base/fs.h"

namespace tutti::launch {

class MeetingPlace {
 public:
  MeetingPlace();  // WorldError if no folder can be made
  ~MeetingPlace();
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
  int lock_ = -1;  // held while we live: what tells our folder from a dead owner's
};

// /dev/shm or $TMPDIR: where meeting places lie.
fs::path meeting_root();

}  // namespace tutti::launch
