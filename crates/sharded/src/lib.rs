//! Where placement meets ranks: exchange, lookup, gradient push
