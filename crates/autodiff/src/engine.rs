//! The backward walk.
use crate::contribution::{Contribution, carrier, total};
use crate::rules;
use crate::segments::Segments;
use crate::walk::{Key, Var, Walk, handle, key, passes, source, var};
use bimetal_tensor::graph::{IdMap, IdSet};
use bimetal_tensor::{Error, ErrorKind, Result, Tensor};

/// The gradients of `wrt`, in the dtypes gradients travel in, from those of `outputs`; `None` where nothing arrives. What lies
/// behind the tensors of `border` is not looked at: they are taken as independent of each other.
pub(crate) fn run(
    outputs: &[&Tensor],
    cotangents: &[Tensor],
    wrt: &[&Tensor],
    border: &[Tensor],
) -> Result<Vec<Option<Tensor>>> {
    let wanted: IdSet<Var> = wrt.iter().map(|t| var(t)).collect();
    let border: IdSet<Var> = border.iter().map(var).collect();
    let walk = Walk::new(outputs, &border);
    let live = Live::new(&walk, &wanted);
    let mut segments = match walk.checkpoints {
        true => Segments::find(outputs, &border),
        false => Segments::none(),
    };
    let mut arrived = Arrived {
        first: walk.nodes.iter().map(|_| None).collect(),
        others: walk.nodes.iter().map(|_| Vec::new()).collect(),
        border: IdMap::default(),
    };
    for (t, g) in outputs.iter().zip(cotangents) {
        let t = source(t);
        let i = match border.contains(&handle(t)) {
            true => None,
            false => walk.number(t),
        };
        if live.edge(i, t) {
            arrived.add(i, t, Contribution::from(g.clone()).carried(t.dtype()));
        }
    }

    let mut found: IdMap<Var, Tensor> = IdMap::default();
    let (mut cots, mut needs): (Vec<Option<Tensor>>, Vec<bool>) = (Vec::new(), Vec::new());
    for &i in walk.order.iter().rev() {
        let node = walk.nodes[i];
        if arrived.first[i].is_none() {
            continue;
        }
        let alone = node.output_count() == 1 && arrived.others[i].is_empty();
        match arrived.first[i].take_if(|(_, g)| alone && g.is_whole()) {
            // No node to be built, as for most.
            Some((_, g)) => {
                g.tensor().check()?;
                cots.clear();
                cots.push(Some(g.tensor().clone()));
            }
            None => cots = node.label().backward(|| arrived.take(i, node))?,
        }
        if live.wanted_nodes[i] {
            for (out, g) in cots.iter().enumerate() {
                if let Some(g) = g
                    && wanted.contains(&(key(node), out))
                {
                    found.insert((key(node), out), g.clone());
                }
            }
        }
        if !live.through[i] {
            continue;
        }
        let Some(first) = cots.iter().flatten().next() else {
            continue;
        };
        needs.clear();
        needs.extend((0..node.inputs().len()).map(|k| live.operand(i, k)));
        let forward = segments.forward(node, first);
        node.label().backward(|| -> Result<()> {
            let grads = rules::vjp(&forward, &cots, &needs)?;
            for (k, g) in grads.into_iter().enumerate() {
                if let Some(g) = g
                    && needs.get(k) == Some(&true)
                {
                    let x = &node.inputs()[k];
                    let g = g.carried(x.dtype());
                    check(node, x, &g)?;
                    arrived.add(walk.operand(i, k), x, g);
                }
            }
            Ok(())
        })?;
    }

    let mut result = Vec::with_capacity(wrt.len());
    for t in wrt {
        let v = var(t);
        if let Some(list) = arrived.border.remove(&v) {
            let g = t.label().backward(|| total(list, source(t).shape()?))?;
            found.insert(v, g);
        }
        result.push(found.get(&v).cloned());
    }
    Ok(result)
}

/// What consumers have sent to values that have not been visited yet.
struct Arrived {
    /// What came first to a node, with the number of the output.
    first: Vec<Option<(usize, Contribution)>>,
    /// What came then.
    others: Vec<Vec<(usize, Contribution)>>,
    border: IdMap<Var, Vec<Contribution>>,
}

impl Arrived {
    fn add(&mut self, i: Option<usize>, t: &Tensor, g: Contribution) {
        match i {
            Some(i) => {
                let part = (source(t).output_index(), g);
                match &mut self.first[i] {
                    Some(_) => self.others[i].push(part),
                    first => *first = Some(part),
                }
            }
            None => self.border.entry(var(t)).or_default().push(g),
        }
    }

    /// The gradients of all outputs of node `i`.
    fn take(&mut self, i: usize, node: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut lists: Vec<Vec<Contribution>> = Vec::new();
        lists.resize_with(node.output_count(), Vec::new);
        let others = std::mem::take(&mut self.others[i]);
        for (out, g) in self.first[i].take().into_iter().chain(others) {
            lists[out].push(g);
        }
        let mut cots = Vec::with_capacity(lists.len());
        for (out, list) in lists.into_iter().enumerate() {
            cots.push(match list.is_empty() {
                true => None,
                false => Some(total(list, node.output(out).shape()?)?),
            });
        }
        Ok(cots)
    }
}

/// Which nodes lie between the variables and the outputs.
struct Live<'w, 'a> {
    walk: &'w Walk<'a>,
    wanted: &'w IdSet<Var>,
    /// Whether an output of the node is a variable.
    wanted_nodes: Vec<bool>,
    /// Whether a gradient that arrives at the node reaches a variable.
    through: Vec<bool>,
}

impl<'w, 'a> Live<'w, 'a> {
    fn new(walk: &'w Walk<'a>, wanted: &'w IdSet<Var>) -> Self {
        let keys: IdSet<Key> = wanted.iter().map(|(k, _)| *k).collect();
        let mut live = Live {
            walk,
            wanted,
            wanted_nodes: walk.nodes.iter().map(|t| keys.contains(&key(t))).collect(),
            through: vec![false; walk.nodes.len()],
        };
        for &i in &walk.order {
            live.through[i] = (0..walk.nodes[i].inputs().len()).any(|k| live.operand(i, k));
        }
        live
    }

    /// Whether a gradient of operand `k` of node `i` is wanted.
    fn operand(&self, i: usize, k: usize) -> bool {
        let node = self.walk.nodes[i];
        passes(node, k) && self.edge(self.walk.operand(i, k), &node.inputs()[k])
    }

    /// Whether a gradient of this value is wanted, for itself or for what it was computed from.
    fn edge(&self, number: Option<usize>, t: &Tensor) -> bool {
        t.dtype().is_float()
            && match number {
                Some(i) => {
                    self.through[i] || (self.wanted_nodes[i] && self.wanted.contains(&var(t)))
                }
                None => self.wanted.contains(&var(t)),
            }
    }
}

/// A derivative of another shape or dtype than its value would poison everything after it: say whose it was.
fn check(node: &Tensor, x: &Tensor, g: &Contribution) -> Result<()> {
    let t = g.tensor().check()?;
    let (mut have, want) = (t.shape()?, x.shape()?);
    if let Contribution::Range { axis, .. } = g {
        have = have.with(*axis, want[*axis]);
    }
    if have == want && t.dtype() == carrier(x.dtype()) {
        return Ok(());
    }
    Err(Error::at(
        node.op().name(),
        ErrorKind::Shape {
            detail: format!("the derivative must have the shape of its operand, {want}"),
            found: vec![have],
        },
        node.label().clone(),
    ))
}
