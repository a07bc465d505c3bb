/* html_script.c: the little that the page of a run does: it copies a command, searches, filters and sorts. */
#include "html_internal.h"

const char html_script[] =
    "document.addEventListener('click',function(e){var c=e.target.closest&&e.target.closest('code.replay');"
    "if(!c)return;var s=getSelection();if(s.toString())return;"
    "if(navigator.clipboard)navigator.clipboard.writeText(c.textContent).then(function(){c.title='copied'},"
    "function(){});});"
    /* Paper has no folds. */
    "function fold(open){document.querySelectorAll('details').forEach(function(d){"
    "if(open&&!d.open)d.dataset.fold=d.open=true;else if(!open&&d.dataset.fold){d.open=false;delete d.dataset.fold}})}"
    "addEventListener('beforeprint',function(){fold(true)});addEventListener('afterprint',function(){fold(false)});"
    /* Each body of a table is one row, with the command below it. */
    "(function(){var q=document.getElementById('find-text'),v=document.getElementById('find-verdict'),"
    "n=document.getElementById('find-count'),form=document.getElementById('find');"
    "var rows=[].slice.call(document.querySelectorAll('table.rows tbody')),"
    "text=rows.map(function(b){return b.textContent.toLowerCase()});if(!rows.length)return;form.hidden=false;"
    "function show(){var words=q.value.toLowerCase().split(/\\s+/),k=v.value,c=0;rows.forEach(function(b,i){"
    "var has=b.dataset.v,ok=(!k||has===undefined||(' '+has+' ').indexOf(' '+k+' ')>=0)&&"
    "words.every(function(w){return text[i].indexOf(w)>=0});b.hidden=!ok;c+=ok});"
    "n.textContent=q.value||k?c+' of '+rows.length+' rows':''}"
    "q.addEventListener('input',show);v.addEventListener('change',show);"
    "form.addEventListener('submit',function(e){e.preventDefault()});"
    /* A link leads to its row although the filter hides it. */
    "function reach(){var at=location.hash&&document.getElementById(location.hash.slice(1));"
    "if(at&&at.hidden){q.value='';v.value='';show();at.scrollIntoView()}}addEventListener('hashchange',reach);"
    "function value(b,i){var t=b.rows[0].cells[i].textContent,x=t==='∞'?Infinity:t==='–'?0:"
    "/^[-0-9.,e]+$/.test(t)?parseFloat(t.replace(/,/g,'')):NaN;return{t:t,x:x}}"
    "function sort(th){var table=th.closest('table'),i=th.cellIndex,before=th.getAttribute('aria-sort'),"
    "up=before?before!=='ascending':!th.classList.contains('n');"
    "table.querySelectorAll('th').forEach(function(h){h.removeAttribute('aria-sort')});"
    "th.setAttribute('aria-sort',up?'ascending':'descending');"
    "[].slice.call(table.tBodies).map(function(b){var k=value(b,i);k.b=b;return k}).sort(function(a,b){"
    "var d=isNaN(a.x)||isNaN(b.x)?a.t.localeCompare(b.t):a.x===b.x?0:a.x-b.x;return up?d:-d})"
    ".forEach(function(k){table.appendChild(k.b)})}"
    "document.querySelectorAll('table.rows').forEach(function(t){t.classList.add('sorts');"
    "t.querySelectorAll('th').forEach(function(h){h.tabIndex=0;h.title='click to sort';"
    "h.addEventListener('click',function(){sort(h)});"
    "h.addEventListener('keydown',function(e){if(e.key==='Enter')sort(h)})})})})();";
