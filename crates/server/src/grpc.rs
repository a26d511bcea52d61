//! KServe v2 over gRPC: the same answers as REST, in the protocol's messages.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use tonic::{Request, Response, Status};

use crate::{
    budget::Lease,
    clock,
    engine::{Engine, Scored},
    error::ServeError,
    metadata::{self, TensorMetadata},
    metrics::{Stage, Transport},
    passage::Passage,
    proto::{
        self, InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
        grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer},
        infer_parameter::ParameterChoice,
        model_infer_request::InferInputTensor,
        model_infer_response::InferOutputTensor,
    },
    protocol::{Datatype, InferRequest, Limits, ProtocolError, Tensor, WantedOutput, at_most},
    traces::TRACEPARENT,
};

/// The service for one engine.
#[derive(Debug)]
pub struct Service(Arc<Engine>);

/// What a gRPC connection calls.
pub fn service(engine: Arc<Engine>) -> GrpcInferenceServiceServer<Service> {
    let bytes_max = engine.limits.body_bytes_max;
    GrpcInferenceServiceServer::new(Service(engine))
        .max_decoding_message_size(bytes_max)
        .max_encoding_message_size(bytes_max)
}

impl From<ServeError> for Status {
    fn from(error: ServeError) -> Status {
        Status::new(error.code(), error.told())
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(&self, _: Request<proto::ServerLiveRequest>) -> Answer<proto::ServerLiveResponse> {
        Ok(Response::new(proto::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<proto::ServerReadyRequest>,
    ) -> Answer<proto::ServerReadyResponse> {
        Ok(Response::new(proto::ServerReadyResponse { ready: self.0.is_ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<proto::ModelReadyRequest>,
    ) -> Answer<proto::ModelReadyResponse> {
        let request = request.into_inner();
        let ready = match self.0.models.served(&request.name, &request.version) {
            Ok(_) => true,
            Err(ServeError::NotReady { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Response::new(proto::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<proto::ServerMetadataRequest>,
    ) -> Answer<proto::ServerMetadataResponse> {
        let about = metadata::server();
        Ok(Response::new(proto::ServerMetadataResponse {
            name: about.name.to_owned(),
            version: about.version.to_owned(),
            extensions: about.extensions.iter().map(|name| (*name).to_owned()).collect(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<proto::ModelMetadataRequest>,
    ) -> Answer<proto::ModelMetadataResponse> {
        let request = request.into_inner();
        let about = metadata::model(&*self.0.models.served(&request.name, &request.version)?);
        let tensor = |tensor: TensorMetadata| proto::model_metadata_response::TensorMetadata {
            name: tensor.name,
            datatype: tensor.datatype.to_owned(),
            shape: tensor.shape,
        };
        Ok(Response::new(proto::ModelMetadataResponse {
            name: about.name,
            versions: about.versions,
            platform: about.platform.to_owned(),
            inputs: about.inputs.into_iter().map(tensor).collect(),
            outputs: about.outputs.into_iter().map(tensor).collect(),
        }))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Answer<ModelInferResponse> {
        let traceparent = request.metadata().get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let model = &request.get_ref().model_name;
        let mut passage = Passage::begin(Transport::Grpc, model, traceparent.map(str::to_owned));
        let answered = infer(&self.0, request, &mut passage).await;
        self.0.ended(passage, &answered);
        Ok(Response::new(answered?))
    }

    async fn repository_index(
        &self,
        request: Request<proto::RepositoryIndexRequest>,
    ) -> Answer<proto::RepositoryIndexResponse> {
        let entries = metadata::index(&self.0, request.into_inner().ready).into_iter();
        let models = entries.map(|entry| proto::repository_index_response::ModelIndex {
            name: entry.name,
            version: entry.version,
            state: entry.state.to_owned(),
            reason: entry.reason,
        });
        Ok(Response::new(proto::RepositoryIndexResponse { models: models.collect() }))
    }

    async fn repository_model_load(
        &self,
        request: Request<proto::RepositoryModelLoadRequest>,
    ) -> Answer<proto::RepositoryModelLoadResponse> {
        let name = request.into_inner().model_name;
        self.0.change(move |models| models.load(&name).map(drop)).await?;
        Ok(Response::new(proto::RepositoryModelLoadResponse {}))
    }

    async fn repository_model_unload(
        &self,
        request: Request<proto::RepositoryModelUnloadRequest>,
    ) -> Answer<proto::RepositoryModelUnloadResponse> {
        let name = request.into_inner().model_name;
        self.0.change(move |models| models.unload(&name)).await?;
        Ok(Response::new(proto::RepositoryModelUnloadResponse {}))
    }
}

async fn infer(
    engine: &Engine,
    request: Request<ModelInferRequest>,
    passage: &mut Passage,
) -> Result<ModelInferResponse, ServeError> {
    let timeout = request.metadata().get("grpc-timeout").and_then(|value| timeout(value.to_str().ok()?));
    passage.lease = request.extensions().get::<Arc<Lease>>().cloned();
    let message = request.into_inner();
    let (model, version) = (message.model_name.clone(), message.model_version.clone());
    let bytes = message.raw_input_contents.iter().map(Bytes::len).sum::<usize>();
    let mut request = engine.aside(bytes, || read(message, &engine.limits))?;
    if let Some(timeout) = timeout {
        let timeout_us = timeout.as_micros().try_into().unwrap_or(u64::MAX).max(1);
        request.timeout_us =
            if request.timeout_us == 0 { timeout_us } else { request.timeout_us.min(timeout_us) };
    }
    let scored = engine.infer((&model, &version), request, passage).await?;
    let write = clock::now();
    let answer = answer(scored);
    passage.took(Stage::Write, clock::us_between(write, clock::now()));
    Ok(answer)
}

/// gRPC's way of writing a time: up to eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// A request out of its message.
///
/// # Errors
/// With what the client must change.
pub fn read(message: ModelInferRequest, limits: &Limits) -> Result<InferRequest, ProtocolError> {
    at_most("inputs of the request", message.inputs.len(), limits.tensors_max)?;
    at_most("outputs of the request", message.outputs.len(), limits.tensors_max)?;
    let (inputs, raw) = (message.inputs.len(), message.raw_input_contents.len());
    if raw > 0 && raw != inputs {
        return Err(ProtocolError::RawCount { inputs, raw });
    }
    let inputs_asked = message.inputs.iter().map(|input| &input.parameters);
    let all = inputs_asked.chain(message.outputs.iter().map(|output| &output.parameters));
    all.chain([&message.parameters]).try_for_each(check_parameters)?;
    let mut raw = message.raw_input_contents.into_iter();
    let inputs = message.inputs.into_iter().map(|input| read_input(input, raw.next(), limits));
    let request = InferRequest {
        inputs: inputs.collect::<Result<_, _>>()?,
        id: Some(message.id).filter(|id| !id.is_empty()),
        outputs: message
            .outputs
            .into_iter()
            .map(|output| WantedOutput { name: output.name, binary: true })
            .collect(),
        binary_by_default: true,
        timeout_us: whole_parameter(&message.parameters, "timeout")?.unwrap_or(0),
    };
    request.check(limits)
}

type Parameters = HashMap<String, InferParameter>;

fn whole_parameter(parameters: &Parameters, parameter: &'static str) -> Result<Option<u64>, ProtocolError> {
    let wrong = ProtocolError::ParameterType { parameter };
    match parameters.get(parameter).and_then(|parameter| parameter.parameter_choice.as_ref()) {
        None => Ok(None),
        Some(ParameterChoice::Int64Param(value)) => u64::try_from(*value).map(Some).map_err(|_| wrong),
        Some(ParameterChoice::Uint64Param(value)) => Ok(Some(*value)),
        Some(_) => Err(wrong),
    }
}

/// Refuses what is asked for and not done here.
fn check_parameters(parameters: &Parameters) -> Result<(), ProtocolError> {
    for parameter in ["classification", "class_count"] {
        if whole_parameter(parameters, parameter)?.unwrap_or(0) > 0 {
            return Err(ProtocolError::Parameter { parameter });
        }
    }
    match parameters.contains_key("shared_memory_region") {
        true => Err(ProtocolError::Parameter { parameter: "shared_memory_region" }),
        false => Ok(()),
    }
}

fn read_input(input: InferInputTensor, raw: Option<Bytes>, limits: &Limits) -> Result<Tensor, ProtocolError> {
    let Some(datatype) = Datatype::parse(&input.datatype) else {
        let datatype = input.datatype.chars().take(32).collect();
        return Err(ProtocolError::Datatype { input: input.name, datatype });
    };
    let data = match (raw, input.contents) {
        (Some(raw), None) => raw,
        (None, Some(contents)) => typed(&input.name, datatype, &contents)?,
        (Some(_), Some(_)) => {
            let problem = "its contents come twice: in raw_input_contents and in contents".to_owned();
            return Err(ProtocolError::Element { input: input.name, problem });
        }
        (None, None) => return Err(ProtocolError::NoData { input: input.name }),
    };
    Tensor::new(input.name, datatype, &input.shape, data, limits)
}

/// Typed contents as bytes.
fn typed(input: &str, datatype: Datatype, contents: &InferTensorContents) -> Result<Bytes, ProtocolError> {
    /// Writes what fits; the place of the first element that does not.
    fn put<T: Copy, const N: usize>(
        values: &[T],
        bytes: impl Fn(T) -> Option<[u8; N]>,
    ) -> Result<BytesMut, usize> {
        let mut out = BytesMut::with_capacity(values.len() * N);
        for (place, value) in values.iter().enumerate() {
            out.put_slice(&bytes(*value).ok_or(place)?);
        }
        Ok(out)
    }
    let written = match datatype {
        Datatype::Bool => put(&contents.bool_contents, |value| Some([u8::from(value)])),
        Datatype::Uint8 => put(&contents.uint_contents, |v| Some(u8::try_from(v).ok()?.to_le_bytes())),
        Datatype::Uint16 => put(&contents.uint_contents, |v| Some(u16::try_from(v).ok()?.to_le_bytes())),
        Datatype::Uint32 => put(&contents.uint_contents, |v| Some(v.to_le_bytes())),
        Datatype::Uint64 => put(&contents.uint64_contents, |v| Some(v.to_le_bytes())),
        Datatype::Int8 => put(&contents.int_contents, |v| Some(i8::try_from(v).ok()?.to_le_bytes())),
        Datatype::Int16 => put(&contents.int_contents, |v| Some(i16::try_from(v).ok()?.to_le_bytes())),
        Datatype::Int32 => put(&contents.int_contents, |v| Some(v.to_le_bytes())),
        Datatype::Int64 => put(&contents.int64_contents, |v| Some(v.to_le_bytes())),
        Datatype::Fp32 => put(&contents.fp32_contents, |v| Some(v.to_le_bytes())),
        Datatype::Fp64 => put(&contents.fp64_contents, |v| Some(v.to_le_bytes())),
        Datatype::Bytes => Ok(strings(&contents.bytes_contents)),
        Datatype::Fp16 | Datatype::Bf16 => {
            let problem = format!("{} travels in raw_input_contents only", datatype.name());
            return Err(ProtocolError::Element { input: input.to_owned(), problem });
        }
    };
    written.map(BytesMut::freeze).map_err(|place| ProtocolError::Element {
        input: input.to_owned(),
        problem: format!("element {place} is no {}", datatype.name()),
    })
}

fn strings(strings: &[Bytes]) -> BytesMut {
    let mut out = BytesMut::new();
    for string in strings {
        // A message is smaller than 4 GiB, so its strings are.
        out.put_u32_le(string.len() as u32);
        out.put_slice(string);
    }
    out
}

fn answer(scored: Scored) -> ModelInferResponse {
    let mut outputs = Vec::with_capacity(scored.outputs.len());
    let mut raw_output_contents = Vec::with_capacity(scored.outputs.len());
    for output in &scored.outputs {
        let (task, kind) = output.place;
        outputs.push(InferOutputTensor {
            name: scored.loaded.outputs[task][kind].clone(),
            datatype: Datatype::Fp32.name().to_owned(),
            shape: vec![output.values.len() as i64],
            ..InferOutputTensor::default()
        });
        let mut bytes = BytesMut::with_capacity(4 * output.values.len());
        output.values.iter().for_each(|value| bytes.put_f32_le(*value));
        raw_output_contents.push(bytes.freeze());
    }
    ModelInferResponse {
        model_name: scored.loaded.snapshot.version().model.clone(),
        model_version: scored.loaded.version.clone(),
        id: scored.id,
        parameters: HashMap::new(),
        outputs,
        raw_output_contents,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_reads_as_grpc_writes_it() {
        assert_eq!(timeout("250u"), Some(Duration::from_micros(250)));
        assert_eq!(timeout("3S"), Some(Duration::from_secs(3)));
        for wrong in ["", "u", "5x", "-1S", "123456789u", "5µ"] {
            assert_eq!(timeout(wrong), None, "{wrong}");
        }
    }
}
