//! Prints the levels of vector instructions that this machine has, slowest first, on one line.
//!
//! Run with `cargo run -p campanile-kernels --example levels`. The last one is what training uses. A processor with
//! AMX whose system does not grant the tiles ends below `Amx`.

use campanile_kernels::Isa;

fn main() {
    let levels: Vec<String> = Isa::all().iter().map(|isa| format!("{:?}", isa.level())).collect();
    println!("{}", levels.join(" "));
}
