// The rules on parallel.islands and what they need.
#include "base/error.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"

namespace tutti::plan {

void check_islands(const recipe::Recipe& r, std::vector<Finding>& found) {
  const recipe::Parallel& p = r.parallel;
  const auto refuse = [&](Finding finding) { found.push_back(std::move(finding)); };
  if (p.islands > 1 && p.local_steps == 0)
    refuse({"islands",
            {"parallel.islands", "parallel.local_steps"},
            str(p.islands),
            "needs parallel.local_steps above 0",
            {{"parallel.islands", {"1"}}, {"parallel.local_steps", {"50"}}},
            "set parallel.local_steps"});
  if (p.workers % p.islands != 0)
    refuse({"islands workers",
            {"parallel.islands", "parallel.workers"},
            str(p.islands),
            str("must divide parallel.workers = ", p.workers),
            {{"parallel.islands"}, {"parallel.workers"}},
            "let it divide the workers"});
  if (p.islands > 1 && r.batch.micro > 0 && r.batch.global % (p.islands * r.batch.micro) != 0)
    refuse({"islands batch",
            {"parallel.islands", "batch.global", "batch.micro"},
            str(p.islands),
            str("must divide the ", r.batch.global / r.batch.micro, " micro-batches of a step"),
            {{"parallel.islands"}, {"batch.global"}, {"batch.micro"}},
            "let it divide batch.global / batch.micro"});
  if (p.local_steps > 0 && p.local_steps % p.fragments != 0)
    refuse({"islands fragments",
            {"parallel.fragments", "parallel.local_steps"},
            str(p.fragments),
            str("must divide parallel.local_steps = ", p.local_steps),
            {{"parallel.fragments"}, {"parallel.local_steps"}},
            "let it divide local_steps"});
  else if (p.local_steps > 0 && p.overlap_steps >= p.local_steps / p.fragments)
    refuse({"islands overlap",
            {"parallel.overlap_steps", "parallel.local_steps", "parallel.fragments"},
            str(p.overlap_steps),
            str("must be below parallel.local_steps / parallel.fragments = ",
                p.local_steps / p.fragments),
            {{"parallel.overlap_steps"}, {"parallel.fragments", {"1"}}},
            "a mean must have come before the next is sent"});
  if (p.local_steps > 0 && r.on_nan == "skip")
    refuse({"islands skip",
            {"on_nan", "parallel.local_steps"},
            "skip",
            "would let one island skip steps that the others make",
            {{"on_nan", {"stop"}}},
            "use stop"});
  if (p.local_steps > 0 && r.precision == "fp16")
    refuse({"islands fp16",
            {"precision", "parallel.local_steps"},
            "fp16",
            "skips steps, which islands would not do alike",
            {{"precision", {"bf16", "fp32"}}},
            "use bf16"});
}

}  // namespace tutti::plan
