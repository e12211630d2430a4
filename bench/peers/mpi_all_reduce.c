// All-reduce of f32 over MPI, verified: seconds a call as JSON, by bytes.
//   mpirun -np 2 mpi_all_reduce SECONDS BYTES...
// The samples are taken as those of src/comm/measure.cc: after a barrier, calls back to back for
// about 100 us; the slowest rank's time; the median.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static float pattern(int rank, size_t i) { return (float)(((size_t)rank * 31 + i) % 251); }

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void reduce(float* data, size_t count) {
  MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void check(float* data, size_t count, int rank, int ranks) {
  for (size_t i = 0; i < count; ++i) data[i] = pattern(rank, i);
  reduce(data, count);
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += pattern(r, i);
    if (data[i] != sum) {
      fprintf(stderr, "all-reduce of %zu floats: element %zu is wrong\n", count, i);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
}

static double seconds_of(float* data, size_t count, int calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  for (int i = 0; i < calls; ++i) reduce(data, count);
  return MPI_Wtime() - start;
}

static double clamped(double value, double least, double most) {
  return value < least ? least : value > most ? most : value;
}

static double measure(float* data, size_t count, double budget) {
  double once = seconds_of(data, count, 1);
  for (int i = 0; i < 3; ++i) {
    const double again = seconds_of(data, count, 2) / 2;
    if (again < once) once = again;
  }
  int chosen[2];
  chosen[0] = (int)clamped(100e-6 / once, 1, 500);
  chosen[1] = (int)clamped(budget / (once * chosen[0]), 5, 4000);
  MPI_Bcast(chosen, 2, MPI_INT, 0, MPI_COMM_WORLD);
  double* seconds = malloc((size_t)chosen[1] * sizeof *seconds);
  for (int i = 0; i < chosen[1]; ++i) seconds[i] = seconds_of(data, count, chosen[0]);
  MPI_Allreduce(MPI_IN_PLACE, seconds, chosen[1], MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(seconds, (size_t)chosen[1], sizeof *seconds, by_value);
  const double median = seconds[chosen[1] / 2] / chosen[0];
  free(seconds);
  return median;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 3) MPI_Abort(MPI_COMM_WORLD, 2);
  for (int i = 2; i < argc; ++i) {
    const size_t bytes = strtoull(argv[i], NULL, 10), count = bytes / sizeof(float);
    float* data = malloc(bytes);
    check(data, count, rank, ranks);
    for (size_t k = 0; k < count; ++k) data[k] = 0;
    const double seconds = measure(data, count, atof(argv[1]));
    check(data, count, rank, ranks);
    if (rank == 0)
      printf("%s\"%zu\": %.9g%s", i == 2 ? "{" : ", ", bytes, seconds, i + 1 == argc ? "}\n" : "");
    free(data);
  }
  MPI_Finalize();
  return 0;
}
