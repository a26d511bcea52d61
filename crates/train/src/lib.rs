//! The loop: step, evaluation, metrics, resume
