//! Loops over one element at a time: gradient sums, ReLU's derivative, the cross layer's products.
//!
//! No element depends on another, so the compiler vectorises the one plain loop for each level, and all levels
//! give the same bits by construction. They are bound by memory, not by arithmetic.

use crate::Isa;

/// `target += source`.
///
/// # Panics
///
/// If the lengths differ.
pub fn add(isa: Isa, target: &mut [f32], source: &[f32]) {
    assert_eq!(target.len(), source.len());
    let _ = isa;
    for (target, source) in target.iter_mut().zip(source) {
        *target += source;
    }
}

/// `target *= factor`.
pub fn scale(isa: Isa, target: &mut [f32], factor: f32) {
    let _ = isa;
    for target in target {
        *target *= factor;
    }
}

/// Zeroes the gradient wherever the activation is not above zero: ReLU backwards.
///
/// # Panics
///
/// If the lengths differ.
pub fn relu_backward(isa: Isa, gradient: &mut [f32], activation: &[f32]) {
    assert_eq!(gradient.len(), activation.len());
    let _ = isa;
    for (gradient, activation) in gradient.iter_mut().zip(activation) {
        *gradient = if *activation <= 0.0 { 0.0 } else { *gradient };
    }
}
