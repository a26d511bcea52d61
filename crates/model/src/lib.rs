//! The dense maths: MLP, interaction, cross net, heads, losses; forward and backward side by side
