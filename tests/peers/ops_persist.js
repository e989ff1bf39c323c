// Persisted objects of npm busmq: the attributes given at persistMake.
'use strict';

module.exports = (context) => {
  const made = {};
  return {
    persistMake: ({ id, name, attributes }) => { made[name] = context.bus.persistify(name, {}, attributes); context.say({ id, result: null }); },
    persistSet: ({ id, name, values }) => { Object.assign(made[name], values); context.say({ id, result: null }); },
    persistGet: ({ id, name, attributes }) => {
      context.say({ id, result: attributes.map((attribute) => (made[name][attribute] === undefined ? '<undefined>' : made[name][attribute])) });
    },
    persistSave: ({ id, name }) => made[name].save(context.answer(id)),
    persistLoad: ({ id, name }) => made[name].load(context.answer(id)),
    persistKeep: ({ id, name, ttl }) => { made[name].persist(ttl); context.say({ id, result: null }); },
    persistLetGo: ({ id, name }) => { made[name].unpersist(); context.say({ id, result: null }); },
  };
};
