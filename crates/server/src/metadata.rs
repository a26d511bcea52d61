//! What the server and its models say about themselves.

use campanile_serve::Input;
use serde::Serialize;

use crate::{
    engine::Engine,
    models::{IndexEntry, Loaded},
    protocol::Datatype,
};

/// The server's name in the protocol.
pub const NAME: &str = "campanile";
/// What we speak beyond the protocol's core.
pub const EXTENSIONS: &[&str] = &["binary_tensor_data", "model_repository"];
/// What runs the models.
pub const PLATFORM: &str = "campanile";

/// About the server.
#[derive(Debug, Serialize)]
pub struct ServerMetadata {
    /// Its name.
    pub name: &'static str,
    /// The program's version.
    pub version: &'static str,
    /// What we speak beyond the core.
    pub extensions: &'static [&'static str],
}

/// About a model.
#[derive(Debug, Serialize)]
pub struct ModelMetadata {
    /// Its name.
    pub name: String,
    /// The version in service.
    pub versions: Vec<String>,
    /// What runs it.
    pub platform: &'static str,
    /// The raw columns, by name.
    pub inputs: Vec<TensorMetadata>,
    /// Probabilities and logits.
    pub outputs: Vec<TensorMetadata>,
}

/// About one input or output.
#[derive(Debug, Serialize)]
pub struct TensorMetadata {
    /// Its name.
    pub name: String,
    /// The type that it is best sent as; others that hold the same values are taken too.
    pub datatype: &'static str,
    /// -1 stands for any length.
    pub shape: Vec<i64>,
}

/// About the server.
pub fn server() -> ServerMetadata {
    ServerMetadata { name: NAME, version: env!("CARGO_PKG_VERSION"), extensions: EXTENSIONS }
}

/// About a model in service.
pub fn model(loaded: &Loaded) -> ModelMetadata {
    let inputs = loaded.snapshot.inputs();
    let tensor = |name: &str, datatype: Datatype, shape: &[i64]| TensorMetadata {
        name: name.to_owned(),
        datatype: datatype.name(),
        shape: shape.to_vec(),
    };
    let input = |(name, input): (&str, Input)| match input {
        Input::Dense(_) => tensor(name, Datatype::Fp32, &[-1]),
        Input::Sparse(feature) if inputs.is_list(feature) => tensor(name, Datatype::Bytes, &[-1, -1]),
        Input::Sparse(_) => tensor(name, Datatype::Bytes, &[-1]),
        Input::Weights(_) => tensor(name, Datatype::Fp32, &[-1, -1]),
    };
    ModelMetadata {
        name: loaded.snapshot.version().model.clone(),
        versions: vec![loaded.version.clone()],
        platform: PLATFORM,
        inputs: inputs.all().map(input).collect(),
        outputs: loaded.outputs.iter().flatten().map(|name| tensor(name, Datatype::Fp32, &[-1])).collect(),
    }
}

/// What the repository holds.
pub fn index(engine: &Engine, only_ready: bool) -> Vec<IndexEntry> {
    let entries = engine.models.all().into_iter().map(|model| model.entry());
    entries.filter(|entry| !only_ready || entry.state == "READY").collect()
}
