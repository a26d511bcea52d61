/* Lets oneDNN use AMX where the hypervisor hides its tile geometry.
 *
 * Some virtual machines announce AMX and run it, but answer zeros to CPUID leaves 0x1D and 0x1E. oneDNN then
 * configures tiles of size zero and dies of an illegal instruction. Preloaded into PyTorch's process, this library
 * makes CPUID fault (the kernel's ARCH_SET_CPUID), runs the instruction itself in the signal handler, and fills the
 * architectural values of palette 1 into an empty answer. It is an aid for measuring a peer at its best; Campanile
 * does not need it.
 *
 * Build: cc -O2 -shared -fPIC amx_cpuid.c -o amx_cpuid.so
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012

enum { TILE_LEAF = 0x1d, TMUL_LEAF = 0x1e };

struct answer {
    uint32_t eax, ebx, ecx, edx;
};

static long allow_cpuid(int allowed) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, (long)allowed); }

static struct answer ask(uint32_t leaf, uint32_t subleaf) {
    struct answer got;
    __asm__ volatile("cpuid" : "=a"(got.eax), "=b"(got.ebx), "=c"(got.ecx), "=d"(got.edx) : "a"(leaf), "c"(subleaf));
    return got;
}

static struct answer completed(uint32_t leaf, uint32_t subleaf, struct answer got) {
    if (leaf == TILE_LEAF && subleaf == 0 && got.eax == 0)
        return (struct answer){1, 0, 0, 0}; /* one palette */
    if (leaf == TILE_LEAF && subleaf == 1 && got.eax == 0)
        /* 8192 bytes of tiles, 1024 a tile; 64 bytes a row, 8 tiles; 16 rows. */
        return (struct answer){1024u << 16 | 8192u, 8u << 16 | 64u, 16, 0};
    if (leaf == TMUL_LEAF && subleaf == 0 && got.ebx == 0)
        return (struct answer){0, 64u << 8 | 16u, 0, 0}; /* K of 16 rows, N of 64 bytes */
    return got;
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    if (code[0] != 0x0f || code[1] != 0xa2) {
        /* A real fault: let it happen again, unhandled. */
        signal(signal_number, SIG_DFL);
        return;
    }
    uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX];
    allow_cpuid(1);
    struct answer got = ask(leaf, subleaf);
    allow_cpuid(0);
    got = completed(leaf, subleaf, got);
    registers[REG_RAX] = got.eax;
    registers[REG_RBX] = got.ebx;
    registers[REG_RCX] = got.ecx;
    registers[REG_RDX] = got.edx;
    registers[REG_RIP] += 2;
}

__attribute__((constructor(101))) static void install(void) {
    struct sigaction action = {0};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGSEGV, &action, 0) != 0 || allow_cpuid(0) != 0) {
        static const char sorry[] = "amx_cpuid: this processor or kernel cannot intercept CPUID\n";
        (void)!write(STDERR_FILENO, sorry, sizeof sorry - 1);
    }
}
