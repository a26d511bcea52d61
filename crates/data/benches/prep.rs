//! Raw text to packed blocks, and packed blocks to batches, beside this machine's copy speed.
fn main() {}
