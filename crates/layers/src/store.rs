//! The parameters of a model.
use crate::param::{Kind, Param};
use crate::{Ctx, Scope};
use bimetal_precision::{F8Recipe, PolicyMap, near_paths, path_matches};
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{DType, Device, Error, PathGuard, Result, Shape, Slot, Tensor};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The name of the counter of applied steps among the state.
pub(crate) const APPLIED: &str = "applied_steps";

/// What the names of histories of 8-bit products begin with.
pub(crate) const HISTORY: &str = "f8/";

/// The parameters and other state of a model, in the order in which layers registered them. Cheap to clone: clones are the same store.
///
/// Mistakes made while layers are built do not panic: the first is kept for [`ParamStore::check`], and every use of what it broke
/// reports it.
#[derive(Clone)]
pub struct ParamStore(Arc<Inner>);

struct Inner {
    device: Device,
    policies: PolicyMap,
    /// The mistake that breaks every layer.
    unusable: Option<Error>,
    seed: AtomicU64,
    applied: OnceLock<Result<Slot>>,
    registry: Mutex<Registry>,
}

#[derive(Default)]
pub(crate) struct Registry {
    /// Each slot once.
    pub(crate) entries: Vec<Param>,
    /// Paths of entries, and names under which tied parameters are used too.
    pub(crate) by_path: HashMap<Arc<str>, Param>,
    mistake: Option<Error>,
    computes_in_f16: bool,
    pub(crate) f8_recipe: F8Recipe,
    pub(crate) matmul_precision: MatmulPrecision,
    /// Paths of layers whose policy their scope was told.
    chosen: HashSet<Arc<str>>,
    /// Paths at which layers were built, each once, as they were built.
    layers: Vec<Arc<str>>,
    layer_set: HashSet<Arc<str>>,
}

/// What a layer asks to be registered.
pub(crate) struct Request {
    pub(crate) path: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) compute: DType,
    pub(crate) initial: Tensor,
}

impl ParamStore {
    /// An empty store on `device` whose layers follow `policies`: the name of a policy (`"mixed_float16"`), a [`bimetal_precision::Policy`], or policies by path.
    ///
    /// A name that is no policy is a mistake like any other while layers are built: [`ParamStore::check`] and every layer report it.
    #[track_caller]
    pub fn new<P>(device: &Device, policies: P) -> ParamStore
    where
        P: TryInto<PolicyMap, Error: std::fmt::Display>,
    {
        let (policies, mistake) = match policies.try_into() {
            Ok(p) => (p, None),
            Err(e) => {
                let e = Error::argument("policy", e.to_string());
                (PolicyMap::default(), Some(e))
            }
        };
        let registry = Registry {
            mistake: mistake.clone(),
            ..Registry::default()
        };
        ParamStore(Arc::new(Inner {
            device: device.clone(),
            policies,
            unusable: mistake,
            seed: AtomicU64::new(0),
            applied: OnceLock::new(),
            registry: Mutex::new(registry),
        }))
    }

    /// The seed of all initial values and of all random numbers of forward passes; 0 unless set. It must be set before layers are built.
    #[track_caller]
    pub fn seed(self, seed: u64) -> ParamStore {
        if let Err(e) = self.unbuilt("seed") {
            let _ = self.mistake(e);
        }
        self.0.seed.store(seed, Ordering::Relaxed);
        self
    }

    /// How the scales of 8-bit products are found, in layers whose policy asks for them (`mixed_float8`); Transformer Engine's default unless set. It must be set
    /// before layers are built.
    #[track_caller]
    pub fn f8_recipe(self, recipe: F8Recipe) -> ParamStore {
        match recipe.check().and_then(|()| self.unbuilt("f8_recipe")) {
            Ok(()) => self.registry().f8_recipe = recipe,
            Err(e) => _ = self.mistake(e),
        }
        self
    }

    /// How layers multiply f32 operands: linear layers, the projections of attention, and LSTMs, forward and backward. [`MatmulPrecision::Exact`] unless set; a
    /// scope can choose another ([`Scope::matmul_precision`]). It must be set before layers are built.
    #[track_caller]
    pub fn matmul_precision(self, precision: MatmulPrecision) -> ParamStore {
        match self.unbuilt("matmul_precision") {
            Ok(()) => self.registry().matmul_precision = precision,
            Err(e) => _ = self.mistake(e),
        }
        self
    }

    /// An error if layers have been built already.
    #[track_caller]
    fn unbuilt(&self, what: &'static str) -> Result<()> {
        if self.registry().entries.is_empty() {
            return Ok(());
        }
        let detail = "layers have been built already; set it right after `ParamStore::new`";
        Err(Error::argument(what, detail))
    }

    /// The scope in which a model's outermost layers are built.
    pub fn root(&self) -> Scope {
        Scope::root(self, self.0.unusable.clone())
    }

    /// All parameters, trainable or not, in the order of registration; tied ones once.
    pub fn params(&self) -> Vec<Param> {
        self.listed(|p| p.kind() == Kind::Parameter)
    }

    /// The parameters that training changes.
    pub fn trainable(&self) -> Vec<Param> {
        self.listed(|p| p.trainable())
    }

    /// The slots of the parameters that training changes, to differentiate with respect to.
    ///
    /// Error: the first mistake made while layers were built.
    pub fn trainable_slots(&self) -> Result<Vec<Slot>> {
        self.check()?;
        self.trainable().iter().map(|p| p.slot().cloned()).collect()
    }

    /// State that is not trained, such as the running statistics of BatchNorm.
    pub fn buffers(&self) -> Vec<Param> {
        self.listed(|p| p.kind() == Kind::Buffer)
    }

    /// The parameter or buffer at a path such as `encoder.0.weight`; tied parameters answer to all their names.
    #[track_caller]
    pub fn param(&self, path: &str) -> Result<Param> {
        let registry = self.registry();
        if let Some(p) = registry.by_path.get(path) {
            return Ok(p.clone());
        }
        let paths: Vec<&str> = registry.entries.iter().map(|p| p.path()).collect();
        Err(Error::argument(
            "param",
            format!(
                "there is no parameter `{path}`; there are {}",
                crate::load::name_some(&paths)
            ),
        ))
    }

    /// Freezes (`false`) or thaws the parameters that a path pattern describes (`encoder`, `blocks.*.norm*`); returns how many.
    pub fn set_trainable(&self, pattern: &str, trainable: bool) -> usize {
        let chosen =
            self.listed(|p| p.kind() == Kind::Parameter && path_matches(pattern, p.path()));
        for p in &chosen {
            p.set_trainable(trainable);
        }
        chosen.len()
    }

    /// All slots a checkpoint saves from a model: parameters, buffers and, named `f8/...`, histories of 8-bit products, in the order of registration, then
    /// the counter of applied steps. A slot's name is its path.
    ///
    /// Error: the first mistake made while layers were built.
    pub fn state(&self) -> Result<Vec<Slot>> {
        self.check()?;
        let mut slots = Vec::new();
        for p in self.listed(|_| true) {
            slots.push(p.slot()?.clone());
        }
        slots.push(self.applied()?.clone());
        Ok(slots)
    }

    /// The number of applied steps (U32 scalar); skipped steps do not count.
    pub fn applied(&self) -> Result<&Slot> {
        let create = || {
            let zero = Tensor::from_slice(&[0u32], &[], &self.0.device);
            Slot::new(APPLIED, &zero, &self.0.device)
        };
        let slot = self.0.applied.get_or_init(create);
        slot.as_ref().map_err(Clone::clone)
    }

    /// The first mistake made while layers were built, as an error: a path used twice, a policy that does not exist, a size that is impossible; or a rule of
    /// the policies that describes none of the layers. Call it when all layers are built; optimizers and the Trainer do.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let registry = self.registry();
        if let Some(e) = &registry.mistake {
            return Err(e.clone());
        }
        if registry.layers.is_empty() {
            return Ok(());
        }
        let layers = || registry.layers.iter().map(|path| &**path);
        let idle = |(pattern, _): &&(String, _)| !layers().any(|path| path_matches(pattern, path));
        let Some((pattern, policy)) = self.policies().rules.iter().find(idle) else {
            return Ok(());
        };
        Err(Error::setting(
            "policy",
            format!(
                "the rule `{pattern}={policy}` describes no layer; the nearest are {}; correct the pattern or remove the rule",
                near_paths(pattern, layers(), 5).join(", ")
            ),
        ))
    }

    /// The context of a training forward pass: dropout drops, BatchNorm uses the batch. One per step or micro-batch.
    pub fn train(&self) -> Ctx {
        Ctx::new(self, true)
    }

    /// The context of an evaluation forward pass: dropout does nothing, BatchNorm uses running statistics.
    pub fn eval(&self) -> Ctx {
        Ctx::new(self, false)
    }

    /// The device that holds the parameters.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The policies layers follow where their scope does not say otherwise.
    pub fn policies(&self) -> &PolicyMap {
        &self.0.policies
    }

    /// Whether any layer computes in f16, so that training needs loss scaling.
    pub fn computes_in_f16(&self) -> bool {
        self.registry().computes_in_f16
    }

    /// Whether somebody chose the policy of the layer at `path`, or of a layer around it: a rule of the policies, or [`Scope::policy`]. The default is not a
    /// choice.
    pub fn policy_chosen(&self, path: &str) -> bool {
        if self.policies().matching(path).is_some() {
            return true;
        }
        let registry = self.registry();
        let ends = path.match_indices('.').map(|(i, _)| i);
        ends.chain([path.len()])
            .any(|end| registry.chosen.contains(&path[..end]))
    }

    /// The seed.
    pub fn seed_value(&self) -> u64 {
        self.0.seed.load(Ordering::Relaxed)
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn listed(&self, keep: impl Fn(&Param) -> bool) -> Vec<Param> {
        let registry = self.registry();
        registry
            .entries
            .iter()
            .filter(|p| keep(p))
            .cloned()
            .collect()
    }

    /// Keeps the first mistake; hands it back to break what it concerns.
    pub(crate) fn mistake(&self, error: Error) -> Error {
        self.registry().mistake.get_or_insert(error.clone());
        error
    }

    pub(crate) fn note_layer(&self, path: &Arc<str>) {
        let mut registry = self.registry();
        if registry.layer_set.insert(path.clone()) {
            registry.layers.push(path.clone());
        }
    }

    pub(crate) fn note_choice(&self, path: &Arc<str>) {
        self.registry().chosen.insert(path.clone());
    }

    pub(crate) fn note_compute(&self, compute: DType) {
        if compute == DType::F16 {
            self.registry().computes_in_f16 = true;
        }
    }

    /// Makes a slot of a request; a mistake gives a parameter that carries it.
    #[track_caller]
    pub(crate) fn register(&self, request: Request) -> Param {
        let Request {
            path,
            kind,
            compute,
            initial,
        } = request;
        let _path = PathGuard::push(path.clone());
        let shape = initial.shape().unwrap_or(Shape::scalar());
        let made = match (initial.check(), self.free(&path)) {
            (Err(e), _) | (Ok(_), Err(e)) => Err(e),
            // No lock is held while the value is computed.
            (Ok(_), Ok(())) => Slot::new(path.clone(), &initial, &self.0.device),
        };
        let made = made.map_err(|e| self.mistake(e));
        let dtype = initial.dtype();
        let param = Param::new(path.clone(), made, kind, shape, dtype, compute);
        self.note_compute(compute);
        if param.slot().is_ok() {
            let mut registry = self.registry();
            registry.entries.push(param.clone());
            registry.by_path.insert(path, param.clone());
        }
        param
    }

    /// Lets a parameter be known by one more name.
    #[track_caller]
    pub(crate) fn alias(&self, path: Arc<str>, param: &Param) -> Result<()> {
        let _path = PathGuard::push(path.clone());
        self.free(&path).map_err(|e| self.mistake(e))?;
        self.registry().by_path.insert(path, param.clone());
        Ok(())
    }

    #[track_caller]
    fn free(&self, path: &Arc<str>) -> Result<()> {
        let registry = self.registry();
        let detail = match registry.by_path.get(path) {
            Some(p) => format!(
                "`{path}` has been registered before, at {}; give one of the layers another name with `scope.at(name)`",
                p.built()
            ),
            None if &**path == APPLIED => format!("`{path}` is the name of the step counter"),
            None => return Ok(()),
        };
        drop(registry);
        Err(Error::argument("register", detail))
    }
}

impl std::fmt::Debug for ParamStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let registry = self.registry();
        f.debug_list().entries(&registry.entries).finish()
    }
}
