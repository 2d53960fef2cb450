//! Carries out the requests of the run's user (`ebb-control`), which the listener has let in.
//!
//! The listener answers questions at once. Other threads take what takes long: `view` counts pages,
//! the monitor changes limits, and kswapd ages and evicts, because kswapd alone takes pages off the
//! lists. Each request waits there with the connection for its answer.

pub mod children;
pub mod detach;
pub mod listener;

use crate::config::MEMORY_MIN_BYTES;
use crate::pager::Pager;
use crate::processes::lineage;
use crate::report::stat;
use crate::seam::{Connection, answer};
use ebb_control::{Limits, Request, Response};
use ebb_mm::observe::lru_gen::Enabled;

/// Answers a request, or passes it to the thread that does.
pub fn serve(pager: &Pager, request: Request, line: Box<dyn Connection>) {
    let response = match request {
        Request::Metrics => Response::Metrics(stat::metrics(pager)),
        Request::Pressure => Response::Pressure(stat::pressure(&pager.telemetry)),
        Request::Faults => Response::Faults(pager.telemetry.account.faults()),
        Request::Command => Response::Text(stat::command(&pager.config.command)),
        Request::Process => Response::Process(lineage::number(&pager.processes)),
        Request::Member(pid) => Response::Member(lineage::tree(&pager.processes).contains(&pid)),
        Request::LruGen { full } => Response::Text(pager.resident().lru_gen(full)),
        Request::Enabled => Response::Enabled(pager.resident().enabled().0),
        Request::Enable(parts) => {
            let all = Enabled::CORE | Enabled::WALK | Enabled::NON_LEAF;
            pager.resident().enable(Enabled(parts & all));
            Response::Done(())
        }
        Request::View { areas_of } => return pager.telemetry.looks.add(areas_of, line),
        Request::Limits(limits) => return ask_limits(pager, limits, line),
        Request::Detach => return detach::asked(pager, line),
        Request::Reclaim(work) => {
            pager.budget.requests.add(work, line);
            return pager.budget.kswapd.raise();
        }
    };
    answer::say(&*line, &Ok(response));
}

/// A requested limit in which no program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memory.max={0} is less than the {MEMORY_MIN_BYTES} bytes needed")]
struct LimitTooSmall(u64);

/// Checks requested limits (RESIZE-4).
fn check(limits: &Limits) -> Result<(), LimitTooSmall> {
    match limits.max {
        Some(max) if max < MEMORY_MIN_BYTES => Err(LimitTooSmall(max)),
        _ => Ok(()),
    }
}

/// Passes requested limits to the monitor.
fn ask_limits(pager: &Pager, request: Limits, line: Box<dyn Connection>) {
    if let Err(reason) = check(&request) {
        return answer::done(&*line, Err(reason.to_string()));
    }
    pager.budget.limit_requests.add(request, line);
    pager.run.monitor.raise();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_in_which_no_program_runs_is_refused() {
        let of = |max| check(&Limits { max, ..Limits::default() });
        assert_eq!(of(Some(MEMORY_MIN_BYTES)).and(of(None)), Ok(()));
        assert_eq!(of(Some(4096)), Err(LimitTooSmall(4096)));
    }
}
