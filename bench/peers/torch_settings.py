"""Finds the settings with which PyTorch is fastest on this machine.

bf16 in PyTorch is oneDNN's: quick with AMX, fair with AVX-512, and on a processor with neither it falls back to
plain loops that are tens of times slower than f32. On virtual machines that hide the AMX tile geometry oneDNN
dies instead. f32 is MKL's, which takes slow code on processors of other makers unless it is told otherwise. So each way of
running it is tried in a process of its own, and the fastest survivor is taken.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Activations are freed and taken again in every step; without these glibc gives the pages back each time.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}

PROBE = """
import os; os.environ.pop("LD_PRELOAD", None)
import json, time, torch
torch.set_num_threads(1)
def rate(dtype):
    a, b = torch.randn(1024, 512).to(dtype), torch.randn(512, 512).to(dtype)
    a @ b
    best = 1e9
    for _ in range(5):
        begin = time.perf_counter(); a @ b; best = min(best, time.perf_counter() - begin)
    return 2 * 1024 * 512 * 512 / best / 1e9
print(json.dumps({"f32": rate(torch.float32), "bf16": rate(torch.bfloat16), "torch": torch.__version__}))
"""


@dataclass
class TorchSettings:
    """How PyTorch is run, and what one thread of it reaches in matrix products."""

    environment: dict[str, str]
    f32_gflops: float
    bf16_gflops: float
    torch_version: str
    notes: list[str] = field(default_factory=list)

    def bf16_is_hopeless(self) -> bool:
        """Slower than half of f32: a user of this machine would not use it, and a step would take minutes."""
        return self.bf16_gflops < 0.5 * self.f32_gflops


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split())
    return set()


def is_intel() -> bool:
    return "GenuineIntel" in Path("/proc/cpuinfo").read_text()


def build_shim(name: str) -> Path | None:
    source, library = HERE / f"{name}.c", HERE / f"{name}.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if library.exists() and library.stat().st_mtime >= source.stat().st_mtime:
        return library
    if compiler is None:
        return None
    built = subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], capture_output=True)
    return library if built.returncode == 0 else None


def probe(python: str, environment: dict[str, str]) -> dict | None:
    try:
        done = subprocess.run(
            [python, "-W", "ignore", "-c", PROBE],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def find(python: str) -> TorchSettings:
    """Tries the ways that this processor allows. Exits with a sentence if PyTorch does not even start."""
    ways = {"as installed": {}}
    if "amx_bf16" in cpu_flags():
        ways["without AMX (ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16)"] = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
        if shim := build_shim("amx_cpuid"):
            ways["with AMX's tile geometry supplied (amx_cpuid.c)"] = {"LD_PRELOAD": str(shim)}
    elif not is_intel() and (shim := build_shim("mkl_cpu")):
        ways["with MKL's fast code (mkl_cpu.c)"] = {"LD_PRELOAD": str(shim)}
    results, notes = {}, []
    for name, environment in ways.items():
        result = probe(python, environment)
        if result is None:
            notes.append(f"PyTorch {name}: bf16 products crash or do not end on this machine")
        else:
            results[name] = result
    if not results:
        raise SystemExit(f"error: {python} cannot run PyTorch; see README.md for how its environment is made")
    best = max(results, key=lambda name: results[name]["f32"] * results[name]["bf16"])
    for name, result in results.items():
        notes.append(
            f"PyTorch {name}: one thread reaches {result['f32']:.0f} GFLOP/s in f32, {result['bf16']:.1f} in bf16"
            + (" (chosen)" if name == best and len(results) > 1 else "")
        )
    chosen = results[best]
    settings = TorchSettings({**ALLOCATOR, **ways[best]}, chosen["f32"], chosen["bf16"], chosen["torch"], notes)
    if settings.bf16_is_hopeless():
        notes.append(
            f"PyTorch's bf16 is {chosen['f32'] / chosen['bf16']:.0f} times slower than its f32 here (no AVX-512 or AMX "
            "for it to use), so in bf16 configurations the peer runs in f32, its best setting; one variant tries bf16 "
            "where a step takes seconds"
        )
    return settings
