//! Backend conformance suite, gradient checks and golden values of bimetal.
