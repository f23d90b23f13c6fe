//! Paths, mistakes, tied weights, freezing, loading.
use bimetal_layers::*;
use bimetal_precision::{Policy, PolicyMap};
use bimetal_tensor::{DType, Device, Element, Tensor};

fn store(device: &Device, policy: &str) -> ParamStore {
    ParamStore::new(device, policy.parse::<PolicyMap>().unwrap()).seed(7)
}

#[test]
fn paths_are_those_of_scopes_and_pytorch() {
    let device = bimetal_cpu::cpu();
    let store = store(&device, "mixed_float16");
    let blocks = store.root().at("blocks");
    let _a = Linear::new(&blocks.at(0).at("up"), 3, 5);
    let _b = MultiHeadAttention::new(&blocks.at(0).at("attention"), 4, 2);
    let _c = BatchNorm2d::new(&store.root().at("norm"), 2);
    let paths: Vec<String> = store.params().iter().map(|p| format!("{p:?}")).collect();
    assert_eq!(
        paths,
        [
            "blocks.0.up.weight: float32 [5, 3]",
            "blocks.0.up.bias: float32 [5]",
            "blocks.0.attention.in_proj_weight: float32 [12, 4]",
            "blocks.0.attention.in_proj_bias: float32 [12]",
            "blocks.0.attention.out_proj.weight: float32 [4, 4]",
            "blocks.0.attention.out_proj.bias: float32 [4]",
            "norm.weight: float32 [2]",
            "norm.bias: float32 [2]",
        ]
    );
    let buffers: Vec<String> = store
        .buffers()
        .iter()
        .map(|p| p.path().to_string())
        .collect();
    assert_eq!(buffers, ["norm.running_mean", "norm.running_var"]);
    let state: Vec<String> = store
        .state()
        .unwrap()
        .iter()
        .map(|s| s.name().to_string())
        .collect();
    assert_eq!(state.len(), 11);
    assert_eq!(state.last().unwrap(), "applied_steps");
    assert!(store.computes_in_f16());
    assert_eq!(store.applied().unwrap().to_vec::<u32>().unwrap(), [0]);
}

#[test]
fn mistakes_surface_at_check_and_at_first_use() {
    let device = bimetal_cpu::cpu();
    let x = Tensor::ones(&[2, 3], DType::F32, &device);

    let s = store(&device, "float32");
    let _first = Linear::new(&s.root().at("a"), 3, 3);
    let second = Linear::new(&s.root().at("a"), 3, 3);
    let e = s.check().unwrap_err().to_string();
    assert!(e.contains("`a.weight`") && e.contains("store.rs"), "{e}");
    let e = second
        .forward(&x, &s.train())
        .to_vec::<f32>()
        .unwrap_err()
        .to_string();
    assert!(e.contains("registered before"), "{e}");
    assert!(s.state().is_err() && s.trainable_slots().is_err());

    let s = store(&device, "float32");
    let layer = Linear::new(&s.root().at("head").policy("float12"), 3, 3);
    let e = s.check().unwrap_err().to_string();
    assert!(
        e.contains("float12") && e.contains("mixed_bfloat16") && e.contains("`head`"),
        "{e}"
    );
    assert!(layer.forward(&x, &s.eval()).error().is_some());

    let s = ParamStore::new(&device, "mixed_f16");
    let named = line!() - 1;
    let layer = Linear::new(&s.root(), 3, 3);
    for e in [
        s.check().unwrap_err(),
        layer.forward(&x, &s.eval()).error().unwrap().clone(),
    ] {
        let e = e.to_string();
        assert!(
            e.contains("\"mixed_f16\"") && e.contains(&format!("store.rs:{named}")),
            "{e}"
        );
    }

    for broken in [
        |s: &ParamStore| drop(Linear::new(&s.root().at(""), 3, 3)),
        |s: &ParamStore| drop(Dropout::new(&s.root().at("d"), 1.0)),
        |s: &ParamStore| drop(MultiHeadAttention::new(&s.root().at("m"), 5, 2)),
        |s: &ParamStore| {
            drop(Conv2d::with(
                &s.root().at("c"),
                3,
                4,
                1,
                Conv2dOptions {
                    groups: 2,
                    ..Default::default()
                },
            ))
        },
        |s: &ParamStore| {
            drop(Embedding::with(
                &s.root().at("e"),
                3,
                4,
                EmbeddingOptions {
                    padding_idx: Some(3),
                    ..Default::default()
                },
            ))
        },
        |s: &ParamStore| {
            drop(
                s.root()
                    .param("w", &[3], Init::KaimingUniform { slope: 0.0 }),
            )
        },
        |s: &ParamStore| drop(s.root().param("applied_steps", &[3], Init::Zeros)),
        |s: &ParamStore| {
            drop(s.root().param(
                "w",
                &[3],
                Init::Normal {
                    mean: 0.0,
                    std: -1.0,
                },
            ))
        },
    ] {
        let s = store(&device, "float32");
        s.check().unwrap();
        broken(&s);
        assert!(s.check().is_err());
    }
    let late = store(&device, "float32");
    let _layer = Linear::new(&late.root(), 1, 1);
    assert!(
        late.seed(3)
            .check()
            .unwrap_err()
            .to_string()
            .contains("seed")
    );
}

#[test]
fn a_wrong_feature_count_names_the_layer_and_the_lines() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, "mixed_float16");
    let head = Linear::new(&s.root().at("decoder").at("head"), 4, 2);
    let built = line!() - 1;
    let x = Tensor::ones(&[5, 3], DType::F32, &device);
    let y = head.forward(&x, &s.train());
    let used = line!() - 1;
    let e = (y * 2.0).to_f64_vec().unwrap_err().to_string();
    for part in [
        "decoder.head".to_string(),
        "[5, 3]".to_string(),
        "[.., 4]".to_string(),
        format!("store.rs:{built}"),
        format!("store.rs:{used}"),
    ] {
        assert!(e.contains(&part), "{part} is not in {e}");
    }
    // Inside of a sequence too, and the path ends where the layer ends.
    let net = Sequential::new().then(Activation::Relu).then(head);
    let e = net.forward(&x, &s.train());
    let used = line!() - 1;
    let e = e.to_f64_vec().unwrap_err().to_string();
    assert!(
        e.contains("decoder.head") && e.contains(&format!("store.rs:{used}")),
        "{e}"
    );
    assert_eq!(x.matmul(&x).error().unwrap().label().unwrap().path(), "");
}

#[test]
fn a_rule_that_describes_no_layer_is_an_error_at_first_use() {
    let device = bimetal_cpu::cpu();
    let build = |policies: &str| {
        let s = store(&device, policies);
        s.check().unwrap();
        let scope = s.root();
        for i in 0..3 {
            let block = scope.at("blocks").at(i);
            let _ = LayerNorm::new(&block.at("norm"), 4);
            let _ = Linear::new(&block.at("mlp").policy("float32"), 4, 4);
        }
        let _ = Linear::new(&scope.at("head"), 4, 4);
        s
    };
    for fine in [
        "mixed_float16; blocks.*.norm=float32; blocks.1.*=float32; head=float32",
        "mixed_float16; blocks=float32; *=mixed_bfloat16; blocks.2.mlp=float32",
    ] {
        build(fine).check().unwrap();
    }
    for (rule, near) in [
        (
            "haed",
            "the rule `haed=float32` describes no layer; the nearest are head, ",
        ),
        (
            "blocks.*.norn",
            "the nearest are blocks.0.norm, blocks.1.norm, blocks.2.norm, ",
        ),
        ("head.weight", "the nearest are head, "),
    ] {
        let s = build(&format!("mixed_float16; head=float32; {rule}=float32"));
        let found = [
            s.check().unwrap_err(),
            s.trainable_slots().unwrap_err(),
            s.state().unwrap_err(),
        ];
        for e in found {
            assert!(e.to_string().contains(near), "{e}");
        }
    }
}

#[test]
fn policies_by_path_and_by_scope() {
    let device = bimetal_cpu::cpu();
    let s = store(
        &device,
        "mixed_float16; *.norm=float32; head=mixed_bfloat16",
    );
    let x = Tensor::ones(&[2, 4], DType::F32, &device);
    let cx = s.eval();
    let at = |name: &str| s.root().at(name);
    assert_eq!(
        Linear::new(&at("a"), 4, 4).forward(&x, &cx).dtype(),
        DType::F16
    );
    assert_eq!(
        LayerNorm::new(&at("b.norm"), 4).forward(&x, &cx).dtype(),
        DType::F32
    );
    assert_eq!(
        Linear::new(&at("head"), 4, 4).forward(&x, &cx).dtype(),
        DType::BF16
    );
    let inner = at("c").policy("float32").at("d");
    assert_eq!(
        Linear::new(&inner, 4, 4).forward(&x, &cx).dtype(),
        DType::F32
    );
    let split = at("e").with_policy("p=f32,c=f16,o=f32".parse().unwrap());
    let layer = Linear::new(&split, 4, 4);
    assert_eq!(layer.weight().compute().dtype(), DType::F16);
    assert_eq!(layer.forward(&x, &cx).dtype(), DType::F32);
    // The norm's parameters stay f32 and its result has the output dtype.
    let norm = LayerNorm::new(&at("f"), 4);
    assert_eq!(norm.forward(&x, &cx).dtype(), DType::F16);
    assert!(s.params().iter().all(|p| p.dtype() == DType::F32));
    assert!(s.computes_in_f16());
    for (path, chosen) in [
        ("a", false),
        ("b.norm", true),
        ("head", true),
        ("c.d", true),
        ("c.d.e", true),
        ("f", false),
    ] {
        assert_eq!(s.policy_chosen(path), chosen, "{path}");
    }
    let plain = ParamStore::new(&device, Policy::mixed_bfloat16());
    let _layer = Linear::new(&plain.root(), 2, 2);
    assert!(!plain.computes_in_f16());
    let _layer = Linear::new(&plain.root().at("x").policy("mixed_float16"), 2, 2);
    assert!(plain.computes_in_f16());
}

#[test]
fn tied_weights_are_one_parameter() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, "mixed_float16");
    let embedding = Embedding::new(&s.root().at("embedding"), 5, 3);
    let head = embedding.projection(&s.root().at("head").policy("float32"));
    s.check().unwrap();
    assert_eq!(s.params().len(), 1);
    assert_eq!(s.param("head.weight").unwrap().path(), "embedding.weight");
    // Each use casts for itself.
    assert_eq!(embedding.weight().compute().dtype(), DType::F16);
    assert_eq!(head.weight().compute().dtype(), DType::F32);
    let tokens = Tensor::from_slice(&[4i32, 0], &[2], &device);
    let cx = s.eval();
    let x = embedding.forward(&tokens, &cx);
    assert_eq!(x.dtype(), DType::F16);
    let table = embedding.weight().read().to_f64_vec().unwrap();
    let (x, y) = (
        x.to_f64_vec().unwrap(),
        head.forward(&x, &cx).to_f64_vec().unwrap(),
    );
    for (n, (row, token)) in y.chunks(5).zip([4, 0]).enumerate() {
        for (c, found) in row.iter().enumerate() {
            let dot: f64 = (0..3).map(|i| x[3 * n + i] * table[3 * c + i]).sum();
            assert!((found - dot).abs() < 1e-5, "{token}");
        }
    }
    head.weight().set_trainable(false);
    assert!(s.trainable().is_empty() && !embedding.weight().trainable());
}

#[test]
fn freezing_by_pattern() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, "float32");
    let _a = Linear::new(&s.root().at("encoder.0"), 2, 2);
    let _b = BatchNorm2d::new(&s.root().at("encoder.1"), 2);
    let _c = Linear::new(&s.root().at("head"), 2, 2);
    assert_eq!(s.trainable().len(), 6);
    assert_eq!(s.set_trainable("encoder", false), 4);
    let left: Vec<String> = s.trainable().iter().map(|p| p.path().to_string()).collect();
    assert_eq!(left, ["head.weight", "head.bias"]);
    s.set_trainable("*", true);
    assert_eq!(s.trainable().len(), 6, "buffers are never trained");
    assert_eq!(
        s.params().len(),
        6,
        "frozen parameters are still parameters"
    );
}

#[test]
fn initial_values_depend_on_seed_and_path_alone() {
    let device = bimetal_cpu::cpu();
    let draw = |seed: u64, policy: &str, others: usize, path: &str| {
        let s = ParamStore::new(&device, policy.parse::<Policy>().unwrap()).seed(seed);
        for i in 0..others {
            let _ = Linear::new(&s.root().at("other").at(i), 3, 3);
        }
        Linear::new(&s.root().at(path), 6, 5)
            .weight()
            .read()
            .to_f64_vec()
            .unwrap()
    };
    let reference = draw(1, "float32", 0, "a");
    assert_eq!(reference, draw(1, "mixed_float16", 3, "a"));
    assert_eq!(reference, draw(1, "float64", 1, "a"));
    assert_ne!(reference, draw(2, "float32", 0, "a"));
    assert_ne!(reference, draw(1, "float32", 0, "b"));
    let bound = 1.0 / 6f64.sqrt();
    assert!(reference.iter().all(|x| x.abs() <= bound));
    assert!(reference.iter().any(|x| x.abs() > bound / 2.0));
}

#[test]
fn initializers_have_their_moments() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, "float64");
    // fan_in 40 * 4 = 160, fan_out 60 * 4 = 240
    let shape = [60, 40, 2, 2];
    let sqrt = f64::sqrt;
    let uniform = |bound: f64| (bound / sqrt(3.0), bound);
    // The truncated normal's deviation: sqrt(1 - 2 * 2 phi(2) / (2 Phi(2) - 1)).
    let truncated = (0.8796256610342398, 2.0);
    for (i, (init, mean, (std, limit))) in [
        (
            Init::Uniform {
                low: -1.0,
                high: 3.0,
            },
            1.0,
            (4.0 / sqrt(12.0), 2.0),
        ),
        (
            Init::Normal {
                mean: 2.0,
                std: 0.5,
            },
            2.0,
            (0.5, 5.0),
        ),
        (
            Init::TruncatedNormal {
                mean: 0.0,
                std: 1.0,
            },
            0.0,
            truncated,
        ),
        (
            Init::XavierUniform { gain: 2.0 },
            0.0,
            uniform(2.0 * sqrt(6.0 / 400.0)),
        ),
        (
            Init::XavierNormal { gain: 1.0 },
            0.0,
            (sqrt(2.0 / 400.0), 1.0),
        ),
        (
            Init::KaimingUniform { slope: 0.0 },
            0.0,
            uniform(sqrt(6.0 / 160.0)),
        ),
        (Init::torch_default(), 0.0, uniform(1.0 / sqrt(160.0))),
        (
            Init::KaimingNormal { slope: 1.0 },
            0.0,
            (sqrt(1.0 / 160.0), 1.0),
        ),
        (Init::Constant(1.5), 1.5, (0.0, 0.0)),
    ]
    .into_iter()
    .enumerate()
    {
        let p = s.root().param(&format!("p{i}"), &shape, init);
        let v = p.read().to_f64_vec().unwrap();
        let n = v.len() as f64;
        let m = v.iter().sum::<f64>() / n;
        let d = sqrt(v.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / n);
        // Five standard errors.
        assert!(
            (m - mean).abs() <= 5.0 * std / sqrt(n),
            "{init:?}: mean {m}"
        );
        assert!(
            (d - std).abs() <= 5.0 * std / sqrt(n),
            "{init:?}: deviation {d}"
        );
        assert!(
            v.iter().all(|x| (x - mean).abs() <= limit * 1.000001),
            "{init:?}"
        );
    }
}

fn entries<'a>(all: &'a [(&'a str, Vec<usize>, Vec<f32>)]) -> Vec<StateEntry<'a>> {
    all.iter()
        .map(|(name, shape, data)| StateEntry {
            name,
            dtype: DType::F32,
            shape,
            bytes: f32::as_bytes(data),
        })
        .collect()
}

#[test]
fn an_f32_checkpoint_loads_into_a_mixed_model_and_back() {
    let device = bimetal_cpu::cpu();
    let model = |s: &ParamStore| {
        (
            Linear::new(&s.root().at("a"), 3, 2),
            BatchNorm2d::new(&s.root().at("b"), 2),
        )
    };
    let from = store(&device, "float32");
    let _m = model(&from);
    from.applied()
        .unwrap()
        .set(&Tensor::from_slice(&[12u32], &[], &device))
        .unwrap();
    let saved: Vec<_> = from
        .state()
        .unwrap()
        .iter()
        .map(|s| {
            (
                s.name().to_string(),
                s.dtype(),
                s.shape(),
                s.to_bytes().unwrap(),
            )
        })
        .collect();
    let list: Vec<StateEntry> = saved
        .iter()
        .map(|(name, dtype, shape, bytes)| StateEntry {
            name,
            dtype: *dtype,
            shape,
            bytes,
        })
        .collect();
    let mixed = ParamStore::new(&device, Policy::mixed_float16()).seed(99);
    let _m = model(&mixed);
    assert_ne!(mixed.state().unwrap()[0].to_bytes().unwrap(), saved[0].3);
    mixed.load(&list).unwrap();
    for (slot, (_, _, _, bytes)) in mixed.state().unwrap().iter().zip(&saved) {
        assert_eq!(&slot.to_bytes().unwrap(), bytes, "{}", slot.name());
    }
    // Into f64 and in another order.
    let wide = store(&device, "float64");
    let _m = model(&wide);
    let turned: Vec<StateEntry> = list.iter().rev().copied().collect();
    wide.load(&turned).unwrap();
    assert_eq!(
        wide.param("a.weight").unwrap().read().to_f64_vec().unwrap(),
        from.param("a.weight").unwrap().read().to_f64_vec().unwrap()
    );
}

#[test]
fn loading_tells_all_that_does_not_fit_and_changes_nothing() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, "mixed_float16");
    let _a = Linear::new(&s.root().at("a"), 2, 2);
    let _b = Linear::new(&s.root().at("b"), 2, 1);
    let before: Vec<_> = s
        .state()
        .unwrap()
        .iter()
        .map(|s| s.to_bytes().unwrap())
        .collect();
    let given = [
        ("a.weight", vec![2, 2], vec![1.0; 4]),
        ("a.bias", vec![3], vec![1.0; 3]),
        ("b.weight", vec![1, 2], vec![1.0; 2]),
        ("c.weight", vec![1], vec![1.0]),
    ];
    let e = s.load(&entries(&given)).unwrap_err().to_string();
    for part in [
        "missing: b.bias",
        "not of this model: c.weight",
        "different: a.bias is float32 [3], here float32 [2]",
    ] {
        assert!(e.contains(part), "{part} is not in {e}");
    }
    let after: Vec<_> = s
        .state()
        .unwrap()
        .iter()
        .map(|s| s.to_bytes().unwrap())
        .collect();
    assert_eq!(before, after);
}

#[test]
fn a_tied_parameter_loads_under_either_name() {
    let device = bimetal_cpu::cpu();
    let s = store(&device, "float32");
    let embedding = Embedding::new(&s.root().at("embedding"), 2, 1);
    let _head = embedding.projection(&s.root().at("head"));
    for (i, names) in [
        vec!["head.weight"],
        vec!["embedding.weight"],
        vec!["head.weight", "embedding.weight"],
    ]
    .iter()
    .enumerate()
    {
        let value = vec![i as f32, 10.0 + i as f32];
        let given: Vec<_> = names
            .iter()
            .map(|n| (*n, vec![2, 1], value.clone()))
            .collect();
        s.load(&entries(&given)).unwrap();
        assert_eq!(
            embedding.weight().slot().unwrap().to_vec::<f32>().unwrap(),
            value
        );
    }
}

#[test]
fn a_size_beyond_memory_names_the_layer() {
    let store = store(&bimetal_cpu::cpu(), "float32");
    let _ = Linear::new(&store.root().at("head"), usize::MAX, 3);
    let text = store.check().unwrap_err().to_string();
    assert!(text.contains("head.weight"), "{text}");
}

#[test]
fn cross_entropy_without_classes_says_so() {
    let device = bimetal_cpu::cpu();
    let logits = Tensor::zeros(&[4, 0], DType::F32, &device);
    let targets = Tensor::zeros(&[4], DType::I32, &device);
    let e = cross_entropy(&logits, &targets).item().unwrap_err();
    assert_eq!(e.op(), "cross_entropy");
    assert!(e.to_string().contains("no classes"), "{e}");
}
