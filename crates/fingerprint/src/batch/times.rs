//! Unrolled loops with the number as a constant. Indices into an array of words must be constants, so that the words
//! can stay in registers.

/// Repeats `$step` with the constant `$number` set to each of the numbers.
macro_rules! written_out {
    ($number:ident => $step:expr, $($value:literal)*) => {
        $({
            const $number: usize = $value;
            $step;
        })*
    };
}

/// Numbers 0 to 3.
macro_rules! four_times {
    ($number:ident => $step:expr) => {
        $crate::batch::times::written_out!($number => $step, 0 1 2 3)
    };
}

/// Numbers 0 to 15.
macro_rules! sixteen_times {
    ($number:ident => $step:expr) => {
        $crate::batch::times::written_out!($number => $step, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}

/// Numbers 0 to 19.
macro_rules! twenty_times {
    ($number:ident => $step:expr) => {
        $crate::batch::times::written_out!($number => $step, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19)
    };
}

pub(crate) use {four_times, sixteen_times, twenty_times, written_out};
