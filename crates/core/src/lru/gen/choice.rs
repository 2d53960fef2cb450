//! The choice of the type to reclaim, where refault rates do not decide it ([`super::pid`] where
//! they do).

use super::super::{Ctx, Lruvec};
use crate::folio::LruType;
use std::sync::atomic::Ordering::Relaxed;

/// Returns anonymous memory if it must be reclaimed because files are at their floor.
pub(super) fn floor_type(v: &Lruvec, cx: &Ctx, swappiness: u32) -> Option<LruType> {
    let spare = swappiness > 0 && v.total(LruType::File) <= cx.tun.mglru.clean_floor;
    (spare && cx.tun.mglru.clean_floor > 0).then_some(LruType::Anon)
}

/// Returns the type of which too little was reclaimed for the ratio of swappiness.
pub(super) fn ratio_type(v: &Lruvec, swappiness: u32) -> LruType {
    let [a, f] = [0, 1].map(|i| v.r#gen.taken[i].load(Relaxed));
    if a + f > 1 << 16 {
        // Older counts are halved, so that they matter less.
        v.r#gen.taken[0].store(a / 2, Relaxed);
        v.r#gen.taken[1].store(f / 2, Relaxed);
    }
    let behind =
        u128::from(a) * u128::from(200 - swappiness) < u128::from(f) * u128::from(swappiness);
    if behind { LruType::Anon } else { LruType::File }
}
