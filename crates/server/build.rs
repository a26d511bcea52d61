//! Compiles the protocol's description in Rust alone: nobody needs `protoc` to build us.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/inference.proto");
    let files = protox::compile(["proto/inference.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Tensors stay in the buffer that the network filled.
        .bytes(".inference.ModelInferRequest.raw_input_contents")
        .bytes(".inference.ModelInferResponse.raw_output_contents")
        .bytes(".inference.InferTensorContents.bytes_contents")
        .build_client(false)
        .compile_fds(files)?;
    Ok(())
}
