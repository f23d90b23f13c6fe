//! Deep-learning training in Rust with mixed precision first.
