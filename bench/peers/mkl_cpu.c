/* Lets MKL use its fast code on processors of other makers.
 *
 * MKL, with which PyTorch multiplies f32 matrices, asks whether the processor is Intel's and takes slower code where it is not, though
 * the instructions are there: on a Zen 5 121 instead of 276 GFLOP/s. Preloaded into PyTorch's process, this answers yes. It is
 * an aid for measuring a peer at its best; users who install PyTorch do not get it, and Campanile does not need it.
 *
 * Build: cc -O2 -shared -fPIC mkl_cpu.c -o mkl_cpu.so
 */
int mkl_serv_intel_cpu_true(void) { return 1; }
int mkl_serv_intel_cpu(void) { return 1; }
