// A placeholder.
#include <cstdio>

int main() {
  std::fprintf(stderr, "tutti-worker: not there yet\n");
  return 70;
}
