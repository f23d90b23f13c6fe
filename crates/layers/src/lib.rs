//! Parameters, layers, initializers and losses of bimetal.
