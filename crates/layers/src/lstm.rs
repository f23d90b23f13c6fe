//! Long short-term memory.
use crate::dropout::{check_rate, drop_elements};
use crate::{Ctx, Init, Layer, Param, Scope, Site, wide};
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{Error, Result, Tensor};

/// Layers of long short-term memory (Hochreiter and Schmidhuber 1997): `[batch, time, inputs]` to `[batch, time, hidden]`. Matrix products in the compute dtype, gates and cell
/// state in f32. Parameters of layer k as in PyTorch: `weight_ih_lk` `[4 hidden, inputs]`, `weight_hh_lk` `[4 hidden, hidden]`, `bias_ih_lk` and `bias_hh_lk` `[4 hidden]`,
/// gates in the order input, forget, cell, output.
pub struct Lstm {
    site: Site,
    layers: Vec<Weights>,
    inputs: usize,
    hidden: usize,
    dropout: f64,
}

struct Weights {
    input: Param,
    hidden: Param,
    /// Of the inputs and of the hidden state.
    biases: Option<[Param; 2]>,
}

/// What can be chosen about an [`Lstm`].
#[derive(Clone, Copy, Debug)]
pub struct LstmOptions {
    /// The number of layers, at least 1.
    pub layers: usize,
    /// The probability with which training drops elements between layers.
    pub dropout: f64,
    /// Whether there are biases.
    pub bias: bool,
}

impl Default for LstmOptions {
    fn default() -> LstmOptions {
        LstmOptions {
            layers: 1,
            dropout: 0.0,
            bias: true,
        }
    }
}

/// What an [`Lstm`] remembers.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// The hidden state `[layers, batch, hidden]`.
    pub h: Tensor,
    /// The cell state `[layers, batch, hidden]`, f32 (f64 under a policy that computes in f64).
    pub c: Tensor,
}

impl Lstm {
    /// One layer with biases.
    #[track_caller]
    pub fn new(scope: &Scope, inputs: usize, hidden: usize) -> Lstm {
        Lstm::with(scope, inputs, hidden, LstmOptions::default())
    }

    /// With options. Initial values are PyTorch's: uniform in plus or minus `1 / sqrt(hidden)`.
    #[track_caller]
    pub fn with(scope: &Scope, inputs: usize, hidden: usize, options: LstmOptions) -> Lstm {
        let mut site = scope.site();
        if options.layers == 0 || hidden == 0 {
            let detail = format!(
                "{} layers of {hidden} units: expected at least 1 of both",
                options.layers
            );
            let e = Error::argument("lstm", detail);
            site = site.broken(scope.store().mistake(e));
        }
        if let Err(e) = check_rate(options.dropout) {
            site = site.broken(scope.store().mistake(e));
        }
        let init = Init::symmetric(1.0 / (hidden.max(1) as f64).sqrt());
        let mut layers = Vec::new();
        for k in 0..options.layers {
            let width = if k == 0 { inputs } else { hidden };
            let input = scope.param(&format!("weight_ih_l{k}"), &[4 * hidden, width], init);
            let recurrent = scope.param(&format!("weight_hh_l{k}"), &[4 * hidden, hidden], init);
            let biases = match options.bias {
                true => Some([
                    scope.param(&format!("bias_ih_l{k}"), &[4 * hidden], init),
                    scope.param(&format!("bias_hh_l{k}"), &[4 * hidden], init),
                ]),
                false => None,
            };
            layers.push(Weights {
                input,
                hidden: recurrent,
                biases,
            });
        }
        Lstm {
            site,
            layers,
            inputs,
            hidden,
            dropout: options.dropout,
        }
    }

    /// The outputs `[batch, time, hidden]` of the last layer, and the state after the last time step; from `state`, or from zeros.
    #[track_caller]
    pub fn run(&self, x: &Tensor, state: Option<&LstmState>, cx: &Ctx) -> (Tensor, LstmState) {
        let result = self.site.within(cx, || self.unroll(x, state, cx));
        result.unwrap_or_else(|e| {
            let t = Tensor::invalid(e);
            let state = LstmState {
                h: t.clone(),
                c: t.clone(),
            };
            (t, state)
        })
    }

    fn unroll(
        &self,
        x: &Tensor,
        state: Option<&LstmState>,
        cx: &Ctx,
    ) -> Result<(Tensor, LstmState)> {
        let found = x.shape()?;
        if found.rank() != 3 || found[2] != self.inputs || found[1] == 0 {
            return Err(Error::shape(
                "lstm",
                &[found],
                format!(
                    "expected [batch, time, {n}] with at least one time step: the layer was built with {n} inputs at {}",
                    self.site.built(),
                    n = self.inputs
                ),
            ));
        }
        let [batch, time] = [found[0], found[1]];
        let state = self.start(state, batch, cx)?;
        let mut x = self.site.input(x);
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for (k, layer) in self.layers.iter().enumerate() {
            if k > 0 {
                x = drop_elements(&x, self.dropout, cx)?;
            }
            let mut gates = self.site.matmul(&x, &layer.input.compute().t());
            if let Some([a, b]) = &layer.biases {
                gates = gates + (a.read() + b.read()).cast(self.site.policy().compute_dtype());
            }
            let weight = layer.hidden.compute();
            let (h, c) = (state.h.index(0, k), state.c.index(0, k));
            let (y, c) = match self.site.matmul_precision() {
                MatmulPrecision::Exact => gates.lstm(&weight, &h, &c),
                _ => self.steps(&gates, &weight.t(), h, c, time),
            };
            hs.push(y.index(1, time - 1));
            cs.push(c);
            x = y;
        }
        let stack = |all: &[Tensor]| Tensor::stack(&all.iter().collect::<Vec<_>>(), 0);
        let state = LstmState {
            h: self.site.output(&stack(&hs)),
            c: stack(&cs),
        };
        Ok((self.site.output(&x), state))
    }

    /// The sequence step by step, for products in a precision of the layer's own: outputs and the last cell state.
    fn steps(
        &self,
        gates: &Tensor,
        weight: &Tensor,
        mut h: Tensor,
        mut c: Tensor,
        time: usize,
    ) -> (Tensor, Tensor) {
        let mut outputs = Vec::with_capacity(time);
        for t in 0..time {
            (h, c) = (gates.index(1, t) + self.site.matmul(&h, weight)).lstm_cell(&c);
            outputs.push(h.clone());
        }
        (Tensor::stack(&outputs.iter().collect::<Vec<_>>(), 1), c)
    }

    /// The state to start from, in the dtypes used inside.
    fn start(&self, state: Option<&LstmState>, batch: usize, cx: &Ctx) -> Result<LstmState> {
        let compute = self.site.policy().compute_dtype();
        let shape = [self.layers.len(), batch, self.hidden];
        let Some(state) = state else {
            let zeros = |dtype| Tensor::zeros(&shape, dtype, cx.store().device());
            return Ok(LstmState {
                h: zeros(compute),
                c: zeros(wide(compute)),
            });
        };
        let found = [state.h.shape()?, state.c.shape()?];
        if found.iter().any(|s| s[..] != shape) {
            let detail = format!("expected a state of h and c, both {shape:?}");
            return Err(Error::shape("lstm", &found, detail));
        }
        Ok(LstmState {
            h: state.h.cast(compute),
            c: state.c.cast(wide(compute)),
        })
    }
}

impl Layer for Lstm {
    #[track_caller]
    fn forward(&self, x: &Tensor, cx: &Ctx) -> Tensor {
        self.run(x, None, cx).0
    }
}
