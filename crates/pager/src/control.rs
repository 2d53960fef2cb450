//! Carries out the requests of the run's user (`ebb-control`), which the listener has let in.
//!
//! The listener answers questions at once. Other threads take what takes long: `view` counts pages,
//! the monitor changes limits, and kswapd ages and evicts, because kswapd alone takes pages off the
//! lists. Each request waits there with the connection for its answer.

use crate::pager::Pager;
use crate::seam::Connection;
use crate::{detach, lineage, resize, stat};
use ebb_control::{Answer, ControlError, Reclaim, Request, Response, answer_to_bytes};
use ebb_mm::observe::lru_gen::Enabled;
use std::sync::{Mutex, PoisonError};

/// Work for kswapd, each with the connection for its answer.
#[derive(Debug, Default)]
pub struct Requests(Mutex<Vec<(Reclaim, Box<dyn Connection>)>>);

impl Requests {
    /// Takes all requests.
    pub fn take(&self) -> Vec<(Reclaim, Box<dyn Connection>)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, work: Reclaim, line: Box<dyn Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((work, line));
    }
}

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
        Request::Limits(limits) => return resize::asked(pager, limits, line),
        Request::Detach => return detach::asked(pager, line),
        Request::Reclaim(work) => {
            pager.budget.requests.add(work, line);
            return pager.budget.kswapd.raise();
        }
    };
    say(&*line, &Ok(response));
}

/// Answers a client. A client that has left, or cannot take the answer now, gets none.
pub fn say(line: &dyn Connection, answer: &Answer) {
    let _ = line.say(&answer_to_bytes(answer));
}

/// Answers a client that its change is done, or why it is not.
pub fn done(line: &dyn Connection, result: Result<(), String>) {
    say(line, &result.map(Response::Done).map_err(ControlError::NotDone));
}
