//! The dense network of a model: from dense inputs and pooled vectors to logits, and back.
//!
//! A [`Network`] is built once from a [`ModelSpec`]; each step it packs the weights ([`Network::prepare`]), then
//! serves any number of grains and threads, each with a [`Workspace`] of its own. Which layers a model has
//! stands in one short file per model below; they only name layers (see `graph`).
//!
//! The order of all sums is fixed and stated in `kernels`; for `f32` the bits are those of the oracle, at
//! every level of instructions and however samples are cut into calls.

use campanile_kernels::{
    Isa,
    gemm::Operands,
    matrix::{Matrix, Store},
};
use campanile_spec::{Distil, ModelSpec, NetworkSpec, Precision};

use crate::{
    ModelError, Workspace,
    graph::{Finished, Graph},
    layer::{Backward, Forward, Layer, copy::Journey},
    network::towers::Vector,
    parameters::{self, Parameter},
    workspace::{Place, Shape, Source},
};

mod dcn;
mod dlrm;
mod factorization;
mod heads;
mod mlp;
mod once;
mod towers;
mod two_tower;

/// The most samples of one backward pass: the sum of a weight gradient over a grain is then one run of the
/// accumulator, and adding a grain to its neighbour is one addition.
pub const BACKWARD_SAMPLES_MAX: usize = campanile_kernels::gemm::BLOCK;

/// A model's dense network.
#[derive(Debug)]
pub struct Network {
    isa: Isa,
    layers: Vec<Layer>,
    /// For each layer: what it sees of the samples.
    sees: Vec<once::Sees>,
    parameters: Vec<Parameter>,
    shape: Shape,
    dense_width: usize,
    pooled_width: usize,
    /// Logits of a sample: one per task, and those of the heads that learn from a teacher.
    output_width: usize,
    served_count: usize,
    /// What the serving logits are linear in, head by head.
    hidden: Vec<Place>,
    /// The layer that does nothing but copy all pooled vectors, if no other reads them, and where to.
    landing: Option<(usize, Place)>,
}

impl Network {
    /// The network of a model, without weights yet.
    ///
    /// # Errors
    /// When the shapes of the description do not fit together.
    pub fn new(spec: &ModelSpec, isa: Isa) -> Result<Network, ModelError> {
        Network::in_training(spec, &Distil::default(), Journey::default(), isa)
    }

    /// The network of a model in training: with the heads that learn from a teacher, and for vectors that leave the towers
    /// rounded. Its serving weights are the first of the flat vector, and are named, shaped and begun as those of
    /// [`Network::new`].
    ///
    /// # Errors
    /// As [`Network::new`]; or when a model without layers shall have such heads.
    pub fn in_training(
        spec: &ModelSpec,
        distil: &Distil,
        journey: Journey,
        isa: Isa,
    ) -> Result<Network, ModelError> {
        if spec.tasks.is_empty() {
            return Err(ModelError::NoTask);
        }
        if spec.dense_count + spec.features.len() == 0 {
            return Err(ModelError::NoInput);
        }
        let mut graph = Graph::new(isa, operands(spec), spec.dense_count, spec.pooled_width());
        graph.distil = *distil;
        let vectors = towers::build(spec, &mut graph, journey)?;
        let logits = build(spec, &mut graph, &vectors)?;
        if logits.width != spec.tasks.len() * (1 + distil.extra_heads()) {
            return Err(ModelError::NoSharedLayers);
        }
        Ok(Network::finished(graph, logits, isa))
    }

    /// The modules of a model's towers alone, for ranks that compute them for others: they take pooled vectors, and their
    /// *logits* are the vectors that the network above sees, side by side.
    ///
    /// # Errors
    /// When the shapes of the description do not fit together.
    pub fn of_towers(spec: &ModelSpec, isa: Isa) -> Result<Network, ModelError> {
        let mut graph = Graph::new(isa, operands(spec), 0, spec.pooled_width());
        let vectors = towers::build(spec, &mut graph, Journey::default())?;
        let handed_on = graph.buffer(towers::width_of(&vectors));
        towers::copy(&mut graph, &vectors, handed_on);
        Ok(Network::finished(graph, handed_on, isa))
    }

    /// The network above the towers alone: its pooled vectors are those that the towers hand on. With
    /// [`Network::of_towers`] it has the layers, the weights and the bits of the whole.
    ///
    /// # Errors
    /// When the shapes of the description do not fit together.
    pub fn above_towers(spec: &ModelSpec, distil: &Distil, isa: Isa) -> Result<Network, ModelError> {
        let widths = spec.vector_widths();
        let mut graph = Graph::new(isa, operands(spec), spec.dense_count, widths.iter().sum());
        graph.distil = *distil;
        let vectors = towers::given(spec, &graph, &widths);
        let logits = build(spec, &mut graph, &vectors)?;
        Ok(Network::finished(graph, logits, isa))
    }

    fn finished(graph: Graph, logits: Place, isa: Isa) -> Network {
        let (dense_width, pooled_width) = (graph.dense().width, graph.pooled().width);
        let hidden = graph.hidden.clone();
        let Finished { mut layers, parameters, shape } = graph.finish(logits);
        let sees = once::sees(&mut layers);
        let is_served = |parameter: &&Parameter| !heads::is_teachers(&parameter.name);
        let served_count = parameters.iter().take_while(is_served).count();
        let output_width = logits.width;
        let landing = landing(&mut layers, pooled_width);
        Network {
            isa,
            layers,
            sees,
            parameters,
            shape,
            dense_width,
            pooled_width,
            output_width,
            served_count,
            hidden,
            landing,
        }
    }

    /// The weights that are served: all but those of the heads that learn from a teacher, which come last.
    pub fn served_parameters(&self) -> &[Parameter] {
        &self.parameters[..self.served_count]
    }

    /// The weights of the heads that learn from a teacher.
    pub fn teacher_parameters(&self) -> &[Parameter] {
        &self.parameters[self.served_count..]
    }

    /// Logits of a sample, over all heads: the tasks' own first.
    pub fn output_width(&self) -> usize {
        self.output_width
    }

    /// Floats of the last hidden vector, over all heads: what the serving logits are linear in. 0 for models whose logits
    /// are no such sums.
    pub fn hidden_width(&self) -> usize {
        self.hidden.iter().map(|place| place.width).sum()
    }

    /// Appends the last hidden vectors `[sample][float]` of the last forward pass, which was over so many samples.
    pub fn copy_hidden(&self, workspace: &Workspace, samples: usize, out: &mut Vec<f32>) {
        for sample in 0..samples {
            self.hidden.iter().for_each(|place| out.extend_from_slice(workspace.row(*place, sample)));
        }
    }

    /// All weights, in the order of the flat vector.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The length of the flat vector.
    pub fn parameter_count(&self) -> usize {
        self.parameters.last().map_or(0, |parameter| parameter.range.end)
    }

    /// The first values of all weights: each a function of the seed, its name and its element only.
    pub fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        parameters::first_values(&self.parameters, seed)
    }

    /// Takes the weights of a step; every pass until the next call uses them.
    ///
    /// # Panics
    /// If `parameters` has another length than [`Network::parameter_count`].
    pub fn prepare(&mut self, parameters: &[f32]) {
        assert_eq!(parameters.len(), self.parameter_count(), "length of the flat weights");
        for layer in &mut self.layers {
            match layer {
                Layer::Linear(layer) => layer.prepare(parameters),
                Layer::Each(layer) => layer.prepare(parameters),
                _ => {}
            }
        }
    }

    /// All memory for passes of up to `samples_max` samples; one a thread.
    pub fn workspace(&self, samples_max: usize) -> Workspace {
        Workspace::new(&self.shape, samples_max)
    }

    /// Computes the logits of some samples: [`Workspace::logits`], `[sample][task]`; with heads that learn from a
    /// teacher, `[sample][head][task]`, of which the first head is the served one.
    ///
    /// `dense` is `[sample][dense_count]`, `pooled` `[sample][pooled_width]` in feature order, and `parameters`
    /// those of the last [`Network::prepare`].
    ///
    /// # Panics
    /// If a length does not fit, or the workspace is smaller than `samples`.
    pub fn forward(
        &self,
        workspace: &mut Workspace,
        parameters: &[f32],
        samples: usize,
        dense: &[f32],
        pooled: &[f32],
    ) {
        let (dense, pooled) = self.matrices(Inputs { samples, dense, pooled });
        self.run(workspace, parameters, samples, (dense, pooled), |_| true);
    }

    /// Where in a workspace the pooled vectors may be written before a pass, so that nobody copies them there.
    pub fn landing<'a>(&self, workspace: &'a mut Workspace) -> Option<Landing<'a>> {
        let (_, place) = self.landing?;
        let (floats, stride) = workspace.rows_mut(place);
        Some(Landing { floats, stride, offset: place.start })
    }

    /// As [`Network::forward`], or as [`Network::forward_with_dense_once`] where dense inputs are given once, for pooled
    /// vectors that lie in the [`Landing`].
    ///
    /// # Panics
    /// As they do; or if the network has no landing.
    pub fn forward_landed(
        &self,
        workspace: &mut Workspace,
        parameters: &[f32],
        samples: usize,
        dense: Dense<'_>,
    ) {
        let (landing, _) = self.landing.expect("a network without a landing");
        // Nobody reads the pooled vectors but the layer that is left out.
        let pooled = Matrix::new(&[], 0, self.pooled_width, self.pooled_width);
        match dense {
            Dense::Each(dense) => {
                assert_eq!(dense.len(), samples * self.dense_width, "length of the dense inputs");
                let dense = Matrix::new(dense, samples, self.dense_width, self.dense_width);
                self.run(workspace, parameters, samples, (dense, pooled), |layer| layer != landing);
            }
            Dense::Once(dense) => {
                self.run_with_dense_once(workspace, parameters, samples, (dense, pooled), |layer| {
                    layer != landing
                });
            }
        }
    }

    /// Runs the layers that are wanted.
    fn run(
        &self,
        workspace: &mut Workspace,
        parameters: &[f32],
        samples: usize,
        (dense, pooled): (Matrix<'_>, Matrix<'_>),
        is_wanted: impl Fn(usize) -> bool,
    ) {
        assert_eq!(parameters.len(), self.parameter_count(), "length of the flat weights");
        let (values, scratch) = workspace.forward(samples, dense, pooled);
        let mut pass = Forward { isa: self.isa, parameters, values, scratch };
        for (_, layer) in self.layers.iter().enumerate().filter(|(place, _)| is_wanted(*place)) {
            layer.forward(&mut pass);
        }
    }

    /// As [`Network::forward`] for samples that all have the dense inputs `dense`, given once: layers that see
    /// nothing else run for one sample. The bits are the same, for no product depends on the number of rows.
    ///
    /// # Panics
    /// As [`Network::forward`].
    pub fn forward_with_dense_once(
        &self,
        workspace: &mut Workspace,
        parameters: &[f32],
        samples: usize,
        dense: &[f32],
        pooled: &[f32],
    ) {
        assert_eq!(pooled.len(), samples * self.pooled_width, "length of the pooled vectors");
        let pooled = Matrix::new(pooled, samples, self.pooled_width, self.pooled_width);
        self.run_with_dense_once(workspace, parameters, samples, (dense, pooled), |_| true);
    }

    fn run_with_dense_once(
        &self,
        workspace: &mut Workspace,
        parameters: &[f32],
        samples: usize,
        (dense, pooled): (&[f32], Matrix<'_>),
        is_wanted: impl Fn(usize) -> bool,
    ) {
        assert_eq!(dense.len(), self.dense_width, "length of one sample's dense inputs");
        if samples == 0 {
            return;
        }
        let dense = Matrix::new(dense, 1, self.dense_width, self.dense_width);
        // Layers that see the dense inputs only do not read the pooled vectors.
        self.run(workspace, parameters, 1, (dense, pooled), |layer| self.sees[layer].dense_only);
        for (layer, sees) in self.layers.iter().zip(&self.sees) {
            if sees.is_read_by_others {
                workspace.spread(layer.writes(), samples);
            }
        }
        // No layer that is left reads the dense inputs themselves.
        self.run(workspace, parameters, samples, (dense, pooled), |layer| {
            !self.sees[layer].dense_only && is_wanted(layer)
        });
    }

    /// Goes back over the samples of the last forward pass, from the gradient of their logits: adds the
    /// gradients of all weights, and writes those of the pooled vectors.
    ///
    /// Each weight's sum over the samples starts at zero and is added once. So one call of
    /// [`Network::backward_anew`] and one of this, for two neighbouring grains and the same gradient, give the
    /// node above them in the tree of grains.
    ///
    /// # Panics
    /// If a length does not fit, or there are more than [`BACKWARD_SAMPLES_MAX`] samples.
    pub fn backward(
        &self,
        workspace: &mut Workspace,
        inputs: Inputs<'_>,
        logits: &[f32],
        outputs: Outputs<'_>,
    ) {
        self.backward_storing(Store::Add, workspace, inputs, logits, outputs);
    }

    /// As [`Network::backward`] onto a gradient of zeros, but the gradient may hold anything: this spares
    /// zeroing and reading a vector as long as all weights.
    ///
    /// # Panics
    /// As [`Network::backward`].
    pub fn backward_anew(
        &self,
        workspace: &mut Workspace,
        inputs: Inputs<'_>,
        logits: &[f32],
        outputs: Outputs<'_>,
    ) {
        self.backward_storing(Store::Replace, workspace, inputs, logits, outputs);
    }

    fn backward_storing(
        &self,
        store: Store,
        workspace: &mut Workspace,
        inputs: Inputs<'_>,
        logits: &[f32],
        outputs: Outputs<'_>,
    ) {
        let (samples, width) = (inputs.samples, self.output_width);
        assert!(samples <= BACKWARD_SAMPLES_MAX, "{samples} samples in one backward pass");
        assert_eq!(logits.len(), samples * width, "length of the logits' gradient");
        assert_eq!(outputs.gradient.len(), self.parameter_count(), "length of the gradient");
        assert_eq!(outputs.pooled.len(), samples * self.pooled_width, "length of the pooled gradient");
        if samples == 0 {
            if store == Store::Replace {
                outputs.gradient.fill(0.0);
            }
            return;
        }
        let (dense, pooled) = self.matrices(inputs);
        let (values, mut gradients, scratch) = workspace.backward(samples, dense, pooled, outputs.pooled);
        gradients.write(
            Place { source: Source::Buffer(self.shape.logits), start: 0, width },
            |_, mut place| {
                (0..samples).for_each(|n| place.row(n).copy_from_slice(&logits[n * width..][..width]));
            },
        );
        let gradient = outputs.gradient;
        let mut pass = Backward { isa: self.isa, values, gradients, gradient, store, scratch };
        for layer in self.layers.iter().rev() {
            layer.backward(&mut pass);
        }
    }

    /// Whether a backward pass reads what the forward pass over the same samples has left. Layers that see nothing but the
    /// pooled vectors, and have no activation, do not.
    pub fn remembers(&self) -> bool {
        self.layers.iter().any(|layer| match layer {
            Layer::Linear(layer) => layer.x.place.source != Source::Pooled || layer.masks_output,
            Layer::Each(layer) => layer.x.place.source != Source::Pooled,
            Layer::Copy(_) => false,
            _ => true,
        })
    }

    /// Floating-point operations of one sample's forward pass in matrix products.
    pub fn forward_gemm_flops_per_sample(&self) -> u64 {
        self.layers.iter().map(|layer| layer.forward_flops().0).sum()
    }

    /// All floating-point operations of one sample's forward pass.
    pub fn forward_flops_per_sample(&self) -> u64 {
        self.layers.iter().map(Layer::forward_flops).map(|(products, rest)| products + rest).sum()
    }

    fn matrices<'a>(&self, inputs: Inputs<'a>) -> (Matrix<'a>, Matrix<'a>) {
        let Inputs { samples, dense, pooled } = inputs;
        assert_eq!(dense.len(), samples * self.dense_width, "length of the dense inputs");
        assert_eq!(pooled.len(), samples * self.pooled_width, "length of the pooled vectors");
        let matrix = |data, width| Matrix::new(data, samples, width, width);
        (matrix(dense, self.dense_width), matrix(pooled, self.pooled_width))
    }
}

/// The samples of a backward pass: those of the forward pass before it.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// How many samples.
    pub samples: usize,
    /// `[sample][dense_count]`.
    pub dense: &'a [f32],
    /// `[sample][pooled_width]`, in feature order.
    pub pooled: &'a [f32],
}

/// What a backward pass gives.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// The flat gradient.
    pub gradient: &'a mut [f32],
    /// The gradient of the pooled vectors `[sample][pooled_width]`, overwritten.
    pub pooled: &'a mut [f32],
}

/// Dense inputs of a pass.
#[derive(Debug, Clone, Copy)]
pub enum Dense<'a> {
    /// `[sample][dense_count]`.
    Each(&'a [f32]),
    /// One sample's, which all share.
    Once(&'a [f32]),
}

/// Memory for the pooled vectors of a pass: those of sample `n` begin at `n * stride + offset`, and what lies between two
/// samples is not theirs.
#[derive(Debug)]
pub struct Landing<'a> {
    /// All samples of the workspace.
    pub floats: &'a mut [f32],
    /// Floats from one sample to the next.
    pub stride: usize,
    /// Where a sample's vectors begin.
    pub offset: usize,
}

/// The layer that copies all pooled vectors as they are, if it is the only one that reads them.
fn landing(layers: &mut [Layer], pooled_width: usize) -> Option<(usize, Place)> {
    let reads = |layer: &mut Layer| layer.reads_mut().iter().any(|read| read.place.source == Source::Pooled);
    let mut readers = (0..layers.len()).filter(|place| reads(&mut layers[*place]));
    let (only, None) = (readers.next()?, readers.next()) else { return None };
    drop(readers);
    match &layers[only] {
        Layer::Copy(copy) if copy.from.place.width == pooled_width && copy.journey.is_none() => {
            Some((only, copy.to))
        }
        _ => None,
    }
}

fn operands(spec: &ModelSpec) -> Operands {
    match spec.precision {
        Precision::F32 => Operands::F32,
        Precision::Bf16 => Operands::Bf16,
    }
}

/// Names the layers of a model and returns the place of its logits: the one place that lists all models.
fn build(spec: &ModelSpec, graph: &mut Graph, vectors: &[Vector]) -> Result<Place, ModelError> {
    match &spec.network {
        NetworkSpec::Dlrm { bottom, top } => dlrm::build(spec, graph, vectors, (bottom, top)),
        NetworkSpec::Dcn { bottom, cross_layers, cross_rank, structure, deep } => {
            let cross = dcn::CrossNet { layers: *cross_layers, rank: *cross_rank, structure: *structure };
            dcn::build(spec, graph, vectors, cross, (bottom, deep))
        }
        NetworkSpec::Mlp { hidden } => mlp::build(spec, graph, vectors, hidden),
        NetworkSpec::TwoTower { item_features, item_dense, user, item, width } => {
            let sides = two_tower::Sides { item_features, item_dense, user, item, width: *width };
            two_tower::build(spec, graph, vectors, &sides)
        }
        NetworkSpec::LogisticRegression => factorization::build_logistic_regression(spec, graph),
        NetworkSpec::FactorizationMachine => factorization::build_machine(spec, graph),
    }
}
