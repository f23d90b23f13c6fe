//! Places in the tree of layers, at which parameters are registered.
use crate::param::{Kind, Param};
use crate::store::{HISTORY, Request};
use crate::{Init, ParamStore, Site, wide};
use bimetal_precision::{F8Recipe, Policy};
use bimetal_tensor::graph::MatmulPrecision;
use bimetal_tensor::{DType, Error, PathGuard, Result, Tensor};
use std::fmt::Display;
use std::sync::Arc;

/// A place in the tree of layers: a path, and the policy that holds there. Layers are built on a scope of their own. Cheap to clone.
#[derive(Clone)]
pub struct Scope {
    store: ParamStore,
    path: Arc<str>,
    policy: Option<Policy>,
    matmul_precision: Option<MatmulPrecision>,
    error: Option<Error>,
}

impl Scope {
    pub(crate) fn root(store: &ParamStore, error: Option<Error>) -> Scope {
        Scope {
            store: store.clone(),
            path: "".into(),
            policy: None,
            matmul_precision: None,
            error,
        }
    }

    /// The scope `name` inside of this one: `root.at("blocks").at(0)` has the path `blocks.0`.
    #[track_caller]
    pub fn at(&self, name: impl Display) -> Scope {
        let mut inner = self.clone();
        match self.join(&name.to_string()) {
            Ok(path) => inner.path = path,
            Err(e) => inner.error = Some(self.store.mistake(e)),
        }
        inner
    }

    /// This scope under a policy by name (`"float32"`), for all layers inside; stronger than the store's policies and than the policies of outer scopes.
    #[track_caller]
    pub fn policy(&self, policy: &str) -> Scope {
        let _path = PathGuard::push(self.path.clone());
        match policy.parse::<Policy>() {
            Ok(policy) => self.with_policy(policy),
            Err(e) => Scope {
                error: Some(self.store.mistake(Error::from(e))),
                ..self.clone()
            },
        }
    }

    /// As [`Scope::policy`], with a policy that has been read already.
    pub fn with_policy(&self, policy: Policy) -> Scope {
        Scope {
            policy: Some(policy),
            ..self.clone()
        }
    }

    /// This scope with another way to multiply f32 operands, for all layers inside; see [`ParamStore::matmul_precision`].
    pub fn matmul_precision(&self, precision: MatmulPrecision) -> Scope {
        Scope {
            matmul_precision: Some(precision),
            ..self.clone()
        }
    }

    /// The policy that holds here: of the innermost scope that was given one, otherwise the store's for this path.
    pub fn policy_here(&self) -> Policy {
        self.policy
            .unwrap_or_else(|| self.store.policies().resolve(&self.path))
    }

    /// The path, such as `blocks.0.attention`; empty at the root.
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    /// The dtype layers built here compute in: the policy's compute dtype, or where that is an 8-bit float, the output dtype.
    pub fn compute(&self) -> DType {
        self.policy_here().compute_dtype()
    }

    /// How 8-bit products here find their scales; `None` unless the policy asks for such products.
    pub fn f8_recipe(&self) -> Option<F8Recipe> {
        let asked = self.policy_here().multiplies_in_f8();
        asked.then(|| self.store.registry().f8_recipe)
    }

    /// The store whose parameters are registered here.
    pub fn store(&self) -> &ParamStore {
        &self.store
    }

    /// What a layer built here keeps: its path, policy and source line.
    #[track_caller]
    pub fn site(&self) -> Site {
        let policy = self.policy_here();
        self.store.note_compute(policy.compute_dtype());
        self.store.note_layer(&self.path);
        if self.policy.is_some() {
            self.store.note_choice(&self.path);
        }
        let chosen = self.matmul_precision;
        let precision = chosen.unwrap_or_else(|| self.store.registry().matmul_precision);
        Site::new(self.path.clone(), policy, precision, self.error.clone())
    }

    /// Registers a parameter in the policy's parameter dtype.
    #[track_caller]
    pub fn param(&self, name: &str, shape: &[usize], init: Init) -> Param {
        self.param_as(name, shape, init, self.policy_here().param)
    }

    /// Registers a parameter that is kept in `dtype` whatever the policy says, as norms keep theirs in f32.
    #[track_caller]
    pub fn param_as(&self, name: &str, shape: &[usize], init: Init, dtype: DType) -> Param {
        let path = self.join(name);
        let initial = match &path {
            Ok(path) => {
                let stream = crate::ctx::stream(crate::ctx::INIT, self.store.seed_value(), path, 0);
                let _at = PathGuard::push(path.clone());
                init.draw(shape, stream, self.store.device())
            }
            Err(e) => Tensor::invalid(e.clone()),
        };
        self.register(path, Kind::Parameter, initial.cast(dtype))
    }

    /// Registers a parameter that starts from a given value, cast to the policy's parameter dtype.
    #[track_caller]
    pub fn param_from(&self, name: &str, value: &Tensor) -> Param {
        let value = value.cast(self.policy_here().param);
        self.register(self.join(name), Kind::Parameter, value)
    }

    /// Registers state that is saved but not trained, filled with `value`, in f32 (f64 where parameters are).
    #[track_caller]
    pub fn buffer(&self, name: &str, shape: &[usize], value: f64) -> Param {
        let dtype = wide(self.policy_here().param);
        let initial = Tensor::full(shape, value, dtype, self.store.device());
        self.register(self.join(name), Kind::Buffer, initial)
    }

    /// Registers a history of largest magnitudes `[steps]`, all 0: saved with the model but no part of it.
    #[track_caller]
    pub(crate) fn history(&self, name: &str, steps: usize) -> Param {
        let path = self
            .join(name)
            .map(|path| format!("{HISTORY}{path}").into());
        let initial = Tensor::zeros(&[steps], DType::F32, self.store.device());
        self.register(path, Kind::Scaling, initial)
    }

    /// Lets an existing parameter be used here too: it is trained and saved once, and read here in this scope's compute dtype. An old
    /// checkpoint may have it under either name.
    #[track_caller]
    pub fn tied(&self, name: &str, param: &Param) -> Param {
        let compute = self.compute();
        self.store.note_compute(compute);
        let done = match (&self.error, self.join(name)) {
            (Some(e), _) => Err(e.clone()),
            (None, Err(e)) => Err(self.store.mistake(e)),
            (None, Ok(path)) => self.store.alias(path, param),
        };
        match done {
            Ok(()) => param.computing_in(compute),
            Err(e) => Param::new(
                self.path.clone(),
                Err(e),
                Kind::Parameter,
                param.shape(),
                param.dtype(),
                compute,
            ),
        }
    }

    #[track_caller]
    fn register(&self, path: Result<Arc<str>>, kind: Kind, initial: Tensor) -> Param {
        self.store.note_layer(&self.path);
        let broken = match (&self.error, &path) {
            (Some(e), _) => Some(e),
            (None, Err(e)) => Some(e),
            (None, Ok(_)) => None,
        };
        let initial = match broken {
            Some(e) => Tensor::invalid(e.clone()),
            None => initial,
        };
        self.store.register(Request {
            path: path.unwrap_or_else(|_| self.path.clone()),
            kind,
            compute: self.compute(),
            initial,
        })
    }

    #[track_caller]
    fn join(&self, name: &str) -> Result<Arc<str>> {
        if name.is_empty() || name.starts_with('.') || name.ends_with('.') || name.contains("..") {
            let _path = PathGuard::push(self.path.clone());
            return Err(Error::argument(
                "scope",
                format!(
                    "\"{name}\" is no name: expected a name such as `head`, or several joined by dots"
                ),
            ));
        }
        Ok(if self.path.is_empty() {
            name.into()
        } else {
            format!("{}.{name}", self.path).into()
        })
    }
}
