//! A network as a list of layers over numbered buffers, and the bookkeeping that layers leave to it.
//!
//! A network is written forwards only, by naming layers (`network/`). Gradients flow through the same list in
//! reverse. Three things about that are decided here, once, when the list is complete:
//!
//! - *Replace or add*: in reverse order, the first layer to write a gradient replaces what is there, the later
//!   ones add to it. So no gradient is ever zeroed beforehand.
//! - *Who applies the ReLU's mask*: the last writer of the gradient, if it is a matrix product.
//! - *Which gradients share memory*: a gradient is alive from its first writer to its buffer's maker; buffers
//!   whose gradients never live together share a slot, which keeps the working set in the caches.

use campanile_kernels::{
    Isa,
    gemm::{self, Activation, Operands},
    interact::Vectors,
    matrix::Store,
};

use campanile_spec::Distil;

use crate::{
    ModelError,
    layer::{Copy, Cross, Each, Factorization, Interaction, Layer, Linear, Read, Scaled, copy::Journey},
    parameters::{First, Layout, Parameter},
    workspace::{Place, Shape, Source},
};

/// A network in the making.
pub(crate) struct Graph {
    isa: Isa,
    operands: Operands,
    layout: Layout,
    layers: Vec<Layer>,
    widths: Vec<usize>,
    /// The buffer in whose gradient each buffer's gradient lives; itself unless [`Graph::cross`] says so.
    gradient_of: Vec<usize>,
    dense: Place,
    pooled: Place,
    /// The heads that learn from a teacher.
    pub distil: Distil,
    /// What the serving logits are linear in, head by head.
    pub hidden: Vec<Place>,
}

/// A finished network.
#[derive(Debug)]
pub(crate) struct Finished {
    pub layers: Vec<Layer>,
    pub parameters: Vec<Parameter>,
    pub shape: Shape,
}

/// What follows a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    Bare,
    Bias,
    BiasRelu,
}

impl Graph {
    pub fn new(isa: Isa, operands: Operands, dense_width: usize, pooled_width: usize) -> Graph {
        let place = |source, width| Place { source, start: 0, width };
        Graph {
            isa,
            operands,
            layout: Layout::default(),
            layers: Vec::new(),
            widths: Vec::new(),
            gradient_of: Vec::new(),
            dense: place(Source::Dense, dense_width),
            pooled: place(Source::Pooled, pooled_width),
            distil: Distil::default(),
            hidden: Vec::new(),
        }
    }

    /// The dense inputs.
    pub fn dense(&self) -> Place {
        self.dense
    }

    /// The pooled vectors.
    pub fn pooled(&self) -> Place {
        self.pooled
    }

    /// A new buffer.
    pub fn buffer(&mut self, width: usize) -> Place {
        self.gradient_of.push(self.widths.len());
        self.widths.push(width);
        Place { source: Source::Buffer(self.widths.len() - 1), start: 0, width }
    }

    /// `y = x Wᵀ`, and what follows. The weights are `prefix.matrix` and `prefix.bias`.
    ///
    /// First values as in DLRM: weights normal with variance `2 / (in + out)`, biases of hidden layers normal
    /// with variance `1 / out`. Biases without ReLU (logits, cross layers) begin at zero.
    pub fn linear(&mut self, names: (&str, &str), x: Place, y: Place, tail: Tail) -> Result<(), ModelError> {
        // Widths of zero are refused before this is looked at.
        let variance = 2.0 / (x.width + y.width).max(1) as f64;
        self.linear_from(names, x, y, tail, First::Normal { deviation: variance.sqrt() as f32 })
    }

    /// The same with other first weights.
    pub fn linear_from(
        &mut self,
        (prefix, matrix): (&str, &str),
        x: Place,
        y: Place,
        tail: Tail,
        first: First,
    ) -> Result<(), ModelError> {
        let (inputs, outputs) = (x.width, y.width);
        if inputs == 0 || outputs == 0 {
            return Err(ModelError::ZeroWidth { layer: prefix.to_string() });
        }
        let weight = self.layout.add(format!("{prefix}.{matrix}"), &[outputs, inputs], first)?;
        let mut bias = |first| self.layout.add(format!("{prefix}.bias"), &[outputs], first);
        let bias = match tail {
            Tail::Bare => None,
            Tail::Bias => Some(bias(First::Zeros)?),
            Tail::BiasRelu => Some(bias(First::Normal { deviation: (1.0 / outputs as f64).sqrt() as f32 })?),
        };
        self.layers.push(Layer::Linear(Linear {
            x: Read::new(x),
            y,
            weight,
            bias,
            activation: if tail == Tail::BiasRelu { Activation::Relu } else { Activation::Identity },
            x_is_relu: false,
            masks_output: false,
            product: gemm::Linear::new(self.isa, self.operands, inputs, outputs),
        }));
        Ok(())
    }

    /// Linear layers with ReLU, named `prefix.0` and so on; the last writes to `y`.
    pub fn mlp_into(&mut self, prefix: &str, x: Place, widths: &[usize], y: Place) -> Result<(), ModelError> {
        let mut input = x;
        for (layer, &width) in widths.iter().enumerate() {
            let output = if layer + 1 == widths.len() { y } else { self.buffer(width) };
            self.linear((&format!("{prefix}.{layer}"), "weight"), input, output, Tail::BiasRelu)?;
            input = output;
        }
        Ok(())
    }

    /// As [`Graph::mlp_into`] with a buffer of its own; no widths give `x` itself.
    pub fn mlp(&mut self, prefix: &str, x: Place, widths: &[usize]) -> Result<Place, ModelError> {
        let Some(&last) = widths.last() else { return Ok(x) };
        let y = self.buffer(last);
        self.mlp_into(prefix, x, widths, y)?;
        Ok(y)
    }

    /// Copies columns.
    pub fn copy(&mut self, from: Place, to: Place) {
        if from.width > 0 {
            self.layers.push(Layer::Copy(Copy { from: Read::new(from), to, journey: None }));
        }
    }

    /// Copies vectors of `width` floats and rounds them as their journey does.
    pub fn carry(&mut self, from: Place, to: Place, (journey, width): (Journey, usize)) {
        self.layers.push(Layer::Copy(Copy { from: Read::new(from), to, journey: Some((journey, width)) }));
    }

    /// `y_f = x_f Wᵀ` for `count` vectors side by side, by one matrix `name`.
    pub fn each(&mut self, name: String, x: Place, y: Place, count: usize) -> Result<(), ModelError> {
        let (inputs, outputs) = (x.width / count, y.width / count);
        if inputs == 0 || outputs == 0 {
            return Err(ModelError::ZeroWidth { layer: name });
        }
        let deviation = (2.0 / (inputs + outputs) as f64).sqrt() as f32;
        let weight = self.layout.add(name, &[outputs, inputs], First::Normal { deviation })?;
        let product = gemm::Linear::new(self.isa, self.operands, inputs, outputs);
        self.layers.push(Layer::Each(Each { x: Read::new(x), y, weight, count, product }));
        Ok(())
    }

    /// Copies columns, and multiplies their gradient on the way back.
    pub fn scaled(&mut self, from: Place, to: Place, factor: f32) {
        self.layers.push(Layer::Scaled(Scaled { from: Read::new(from), to, factor }));
    }

    /// Dots of all pairs of `shape.count` vectors side by side.
    pub fn interaction(&mut self, shape: Vectors, vectors: Place, pairs: Place) {
        self.layers.push(Layer::Interaction(Interaction { shape, vectors: Read::new(vectors), pairs }));
    }

    /// `x0 * u + x`, in a new buffer.
    pub fn cross(&mut self, x0: Place, u: Place, x: Place) -> Place {
        let y = self.buffer(x.width);
        if x != x0
            && let (Source::Buffer(of_x), Source::Buffer(of_y)) = (x.source, y.source)
        {
            self.gradient_of[of_y] = self.gradient_of[of_x];
        }
        self.layers.push(Layer::Cross(Cross { x0: Read::new(x0), u: Read::new(u), x: Read::new(x), y }));
        y
    }

    /// A factorization machine over the pooled rows of `dim` floats each, with its dense part.
    pub fn factorization(&mut self, dim: usize, logits: Place) -> Result<(), ModelError> {
        let (mut linear, mut bias) = (None, None);
        if self.dense.width > 0 {
            let part = self.buffer(logits.width);
            self.linear(("linear", "weight"), self.dense, part, Tail::Bias)?;
            linear = Some(Read::new(part));
        } else {
            bias = Some(self.layout.add("linear.bias".into(), &[logits.width], First::Zeros)?);
        }
        let rows = Read::new(self.pooled);
        self.layers.push(Layer::Factorization(Factorization { linear, bias, rows, logits, dim }));
        Ok(())
    }

    /// Decides what is decided once; `logits` is where the network ends.
    pub fn finish(mut self, logits: Place) -> Finished {
        self.place_masks();
        self.choose_stores(logits);
        let Source::Buffer(logits) = logits.source else { panic!("logits are in a buffer") };
        let slots_of = self.share_slots(logits);
        let shape = Shape { widths: self.widths, slots_of, logits };
        Finished { layers: self.layers, parameters: self.layout.into_parameters(), shape }
    }

    /// The first reader of a ReLU's output, if a linear layer, masks its gradient; else the ReLU's layer does.
    fn place_masks(&mut self) {
        for maker in 0..self.layers.len() {
            let Layer::Linear(layer) = &self.layers[maker] else { continue };
            if layer.activation != Activation::Relu {
                continue;
            }
            let y = layer.y;
            let reads = |layer: &mut Layer| layer.reads_mut().iter().any(|read| read.place.overlaps(y));
            let reader = self.layers[maker + 1..].iter_mut().find_map(|layer| reads(layer).then_some(layer));
            if let Some(Layer::Linear(reader)) = reader
                && reader.x.place == y
            {
                reader.x_is_relu = true;
            } else if let Layer::Linear(layer) = &mut self.layers[maker] {
                layer.masks_output = true;
            }
        }
    }

    /// In reverse order, the first writer of a gradient replaces, the others add.
    fn choose_stores(&mut self, logits: Place) {
        // Per source and column, whether its gradient has been written: buffers first, then pooled and dense.
        let mut written: Vec<Vec<bool>> = self.widths.iter().map(|width| vec![false; *width]).collect();
        written.extend([vec![false; self.pooled.width], vec![false; self.dense.width]]);
        let buffers = self.widths.len();
        let mut columns = |place: Place| -> usize {
            let source = match place.source {
                Source::Buffer(buffer) => buffer,
                Source::Pooled => buffers,
                Source::Dense => buffers + 1,
            };
            let columns = &mut written[source][place.start..place.start + place.width];
            let before = columns.iter().filter(|written| **written).count();
            columns.fill(true);
            before
        };
        columns(logits);
        for layer in self.layers.iter_mut().rev() {
            // The gradient of a later cross layer's `x` begins as that of `y`, in the same memory.
            if let Layer::Cross(cross) = layer
                && !cross.is_first()
            {
                columns(cross.x.place);
            }
            for read in layer.reads_mut() {
                let before = columns(read.place);
                assert!(
                    before == 0 || before == read.place.width,
                    "{before} columns of {:?} have a gradient already: split the reader or the buffer",
                    read.place
                );
                read.store = if before > 0 { Store::Add } else { Store::Replace };
            }
        }
    }

    /// The slot of every buffer's gradient. A gradient lives from the last reader of its buffer (the first to
    /// write it) to the first maker of the buffer.
    fn share_slots(&mut self, logits: usize) -> Vec<usize> {
        let count = self.layers.len();
        let mut lives = vec![(count, 0); self.widths.len()];
        let gradient_of = self.gradient_of.clone();
        let mut touch = |place: Place, layer: usize| {
            if let Source::Buffer(buffer) = place.source {
                let life = &mut lives[gradient_of[buffer]];
                *life = (life.0.min(layer), life.1.max(layer));
            }
        };
        for (index, layer) in self.layers.iter_mut().enumerate() {
            touch(layer.writes(), index);
            layer.reads_mut().iter().for_each(|read| touch(read.place, index));
        }
        lives[gradient_of[logits]].1 = count;
        let mut slots: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut slot_of = vec![usize::MAX; lives.len()];
        // Widest first, so that narrow gradients move into the slots of wide ones.
        let mut order: Vec<usize> = (0..lives.len()).filter(|b| gradient_of[*b] == *b).collect();
        order.sort_by_key(|buffer| std::cmp::Reverse(self.widths[*buffer]));
        for buffer in order {
            let apart = |other: &(usize, usize)| other.1 < lives[buffer].0 || lives[buffer].1 < other.0;
            let free = slots.iter().position(|lives| lives.iter().all(apart)).unwrap_or(slots.len());
            if free == slots.len() {
                slots.push(Vec::new());
            }
            slots[free].push(lives[buffer]);
            slot_of[buffer] = free;
        }
        gradient_of.iter().map(|buffer| slot_of[*buffer]).collect()
    }
}
