//! Reverse-mode differentiation over the bimetal graph.
