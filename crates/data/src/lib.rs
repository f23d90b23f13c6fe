//! Data sets and the input pipeline of bimetal.
